// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/anchor_offer.h"

#include <algorithm>
#include <cstring>

#include "plugin/receive/block_fetcher.h"

namespace driftless {
namespace {

// Copies `count` units of a block, from its unit `first` on, out of one place of the target.
void copy_units(const HeldCopy& held, const BlockPlace& place, std::uint64_t first,
                std::uint64_t count, std::uint64_t unit_bytes, std::span<std::byte> out) {
  const std::byte* values = held.values.data();
  std::uint64_t done = 0;  // units of the block
  for (const HeldRun& run : held.runs) {
    const std::uint64_t run_end = run.first + run.count;
    while (done < count) {
      const std::uint64_t begin = place.at(first + done);
      const std::uint64_t adjoin =
          place.contiguous() ? count : place.run - (first + done) % place.run;
      const std::uint64_t end = begin + std::min(adjoin, count - done);
      const std::uint64_t from = std::max(begin, run.first), until = std::min(end, run_end);
      if (from < until) {
        std::memcpy(out.data() + (done + from - begin) * unit_bytes,
                    values + (from - run.first) * unit_bytes, (until - from) * unit_bytes);
      }
      if (end > run_end) break;  // the next run may have the rest
      done += end - begin;
    }
    values += run.count * unit_bytes;
  }
}

// Fills in the stored values of one row of a full frame. Values that the target does not hold stay
// zero.
Status fill_row(const WeightTarget& target, const BucketEntry& entry, const FrameBlock& row,
                std::span<std::byte> part) {
  const TensorSpec& spec = (*target.layout())[entry.tensor];
  const std::uint64_t width = unit_bytes(spec.dtype), count = entry.count();
  const BlockPlace place =
      entry.block != nullptr ? entry.block->place : BlockPlace::all(spec.units());
  if (count == 0) return {};
  if (row.values.zstd || row.values.size_bytes != count * width) {
    return error(StatusCode::kUnsupported, "tensor '", spec.name, "' is stored compressed");
  }
  const std::uint64_t begin = place.at(row.first_unit);
  const std::uint64_t past = place.at(row.first_unit + count - 1) + 1;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<HeldCopy> copies,
                             target.copies(entry.tensor, begin, past - begin));
  for (const HeldCopy& held : copies) {
    copy_units(held, place, row.first_unit, count, width,
               part.subspan(row.values.offset, row.values.size_bytes));
  }
  return {};
}

// Assembles a full frame whose head is given.
Result<std::vector<std::byte>> put_together(const WeightTarget& target, const PartReceipt& part,
                                            std::span<const std::byte> head) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FrameHead frame, decode_frame_head(head, *target.layout()));
  if (frame.info.context.encoding != Encoding::kFull || frame.info.frame_bytes != part.size_bytes) {
    return error(StatusCode::kCorrupt, "part ", part.name, " is no full frame of its size");
  }
  std::vector<std::byte> bytes(part.size_bytes);
  const std::span<const std::byte> table = head.subspan(kFrameHeaderBytes);
  std::ranges::copy(head.first(kFrameHeaderBytes), bytes.begin());
  std::ranges::copy(table, bytes.end() - static_cast<std::ptrdiff_t>(table.size()));
  for (std::size_t i = 0; i < frame.entries.size(); ++i) {
    DRIFTLESS_RETURN_IF_ERROR(fill_row(target, frame.entries[i], frame.blocks[i], bytes));
  }
  return bytes;
}

}  // namespace

Result<bool> AnchorOffer::offer_next(ReceiveRoad& road, const WeightTarget& target,
                                     const VersionId& held, const Deadline& deadline) {
  const PublicationId wanted{held.version, PublicationKind::kAnchor};
  if (!road.serves_others() || target.layout() == nullptr) return false;
  if (anchor_ != wanted) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<PublicationId> listed, road.list(deadline));
    if (std::ranges::find(listed, wanted) == listed.end()) return false;
    anchor_ = wanted;
    left_.clear();
    DRIFTLESS_RETURN_IF_ERROR(begin(road, *target.layout(), held, deadline));
  }
  if (left_.empty()) return false;
  const PartReceipt part = std::move(left_.back());
  left_.pop_back();
  const Status offered = offer_part(road, target, part, deadline);
  if (!offered.ok()) left_.clear();
  DRIFTLESS_RETURN_IF_ERROR(offered);
  return !left_.empty();
}

Status AnchorOffer::begin(ReceiveRoad& road, const WeightLayout& layout, const VersionId& held,
                          const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, road.fetch_manifest(anchor_, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const Manifest manifest, parse_manifest(text, to_string(anchor_)));
  if (manifest.id != held || manifest.layout != layout.signature() || !may_fetch_blocks(manifest)) {
    return {};
  }
  for (const ManifestFile& file : manifest.files) {
    left_.push_back({file.name, file.rank, file.size_bytes, file.hash, file.locator});
  }
  return {};
}

Status AnchorOffer::offer_part(ReceiveRoad& road, const WeightTarget& target,
                               const PartReceipt& part, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::vector<std::vector<std::byte>> heads,
      fetch_frame_heads(road, anchor_, std::span(&part, 1), RangeFetchOptions(), deadline));
  if (heads.front().empty()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes,
                             put_together(target, part, heads.front()));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t kept,
                             road.offer_part(anchor_, part, bytes, deadline));
  kept_bytes_ += kept;
  return {};
}

}  // namespace driftless
