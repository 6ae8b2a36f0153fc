// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/block_fetcher.h"

#include <algorithm>
#include <array>

#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

// Fetches the head of each frame, by part. The length of a table is in the header. If a further
// range is a further request, the end of the frame is fetched with the header, and then the rows
// that it lacks; otherwise the header first, then exactly the table. Empty if the road has the part
// in device memory.
class HeadFetcher {
 public:
  HeadFetcher(ReceiveRoad& road, const PublicationId& id, const RangeFetchOptions& options,
              const Deadline& deadline)
      : road_(road), id_(id), options_(options), deadline_(deadline) {}

  [[nodiscard]] Result<std::vector<std::vector<std::byte>>> fetch(
      std::span<const PartReceipt> parts);
  [[nodiscard]] std::uint64_t fetched_bytes() const { return fetched_bytes_; }

 private:
  // The end: one byte in kTailShare. It has room for 60 to 500 rows of the table.
  static constexpr std::uint64_t kTailShare = 64;
  static constexpr std::uint64_t kLeastTailBytes = std::uint64_t{4} << 10;
  static constexpr std::uint64_t kMostTailBytes = std::uint64_t{32} << 10;
  struct End {
    std::array<std::vector<std::byte>, 2> bytes;
    bool device = false;
  };
  using Ends = std::vector<End>;

  [[nodiscard]] Result<Ends> take(std::span<const WantedPart> wanted);

  ReceiveRoad& road_;
  const PublicationId id_;
  const RangeFetchOptions& options_;
  const Deadline& deadline_;
  std::uint64_t fetched_bytes_ = 0;
};

// A head that is a smaller part of its frame may be fetched twice.
constexpr std::uint64_t kLeastHeadShare = 64;

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

Result<std::vector<std::vector<std::byte>>> HeadFetcher::fetch(std::span<const PartReceipt> parts) {
  const bool exact = road_.batches_ranges();
  std::vector<WantedPart> wanted;
  for (const PartReceipt& part : parts) {
    const std::uint64_t header = std::min<std::uint64_t>(part.size_bytes, kFrameHeaderBytes);
    const std::uint64_t tail =
        std::min(part.size_bytes - header,
                 std::clamp(part.size_bytes / kTailShare, kLeastTailBytes, kMostTailBytes));
    wanted.push_back({part, {{0, header}}});
    if (!exact) wanted.back().ranges.push_back({part.size_bytes - tail, tail});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Ends ends, take(wanted));
  std::vector<std::uint64_t> tables(parts.size());  // where each begins
  std::vector<WantedPart> more;
  std::vector<std::size_t> whose;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (ends[i].device) continue;
    const Result<FrameInfo> info = read_frame_header(ends[i].bytes[0]);
    if (!info.ok()) return info.status().with_context(concat("part ", parts[i].name));
    if (info->frame_bytes != parts[i].size_bytes) {
      return error(StatusCode::kCorrupt, "part ", parts[i].name, ": a frame of ", info->frame_bytes,
                   " bytes, the manifest says ", parts[i].size_bytes);
    }
    tables[i] = frame_places(*info).table;
    const std::uint64_t there = parts[i].size_bytes - ends[i].bytes[1].size();
    if (there <= tables[i]) continue;
    whose.push_back(i);
    more.push_back({parts[i], {{tables[i], there - tables[i]}}});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Ends rest, take(more));
  std::vector<std::vector<std::byte>> heads(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) heads[i] = ends[i].bytes[0];
  for (std::size_t k = 0; k < whose.size(); ++k) append(heads[whose[k]], rest[k].bytes[0]);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::vector<std::byte>& tail = ends[i].bytes[1];
    const std::uint64_t of_head =
        std::min<std::uint64_t>(tail.size(), parts[i].size_bytes - tables[i]);
    append(heads[i], std::span(tail).last(of_head));
  }
  return heads;
}

Result<HeadFetcher::Ends> HeadFetcher::take(std::span<const WantedPart> wanted) {
  Ends ends(wanted.size());
  DRIFTLESS_ASSIGN_OR_RETURN(
      const RangeFetchReport report,
      fetch_wanted(
          road_, id_, wanted, options_,
          [&](std::size_t part, std::size_t range, const MappedFile& bytes) -> Status {
            if (bytes.memory_kind() != MemoryKind::kHost) {
              ends[part].device = true;
            } else {
              append(ends[part].bytes[range], bytes.bytes());
            }
            return {};
          },
          deadline_));
  fetched_bytes_ += report.fetched_bytes;
  return ends;
}

// Ok if the table's hash is the manifest's. The table has the hash of every block of the frame.
Status check_table(const ManifestFile& file, std::span<const std::byte> head) {
  const Hash128 found = frame_table_hash(head);
  if (found == file.table) return {};
  return error(StatusCode::kCorrupt, "part ", file.name, ": its table has xxh3-128 ", to_hex(found),
               ", the manifest says ", to_hex(*file.table), ": another publication?");
}

// Parts whose manifest entry has the table's hash, and their heads, which were compared with it.
struct TableHeads {
  std::vector<PartReceipt> parts;
  std::vector<std::size_t> files;             // index of each in the manifest
  std::vector<std::vector<std::byte>> heads;  // empty if the road has the part in device memory
  std::uint64_t fetched_bytes = 0;
};

// Without the hash of a frame's table, single blocks of it cannot be proven.
Result<TableHeads> fetch_table_heads(ReceiveRoad& road, const PublicationId& id,
                                     const Manifest& manifest, const RangeFetchOptions& options,
                                     const Deadline& deadline) {
  TableHeads found;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    if (!file.table) continue;
    found.parts.push_back({file.name, file.rank, file.size_bytes, file.hash, file.locator});
    found.files.push_back(i);
  }
  RangeFetchOptions few = options;
  few.takers = 0;  // heads are small: threads would cost more than they save
  HeadFetcher fetcher(road, id, few, deadline);
  DRIFTLESS_ASSIGN_OR_RETURN(found.heads, fetcher.fetch(found.parts));
  found.fetched_bytes = fetcher.fetched_bytes();
  for (std::size_t i = 0; i < found.heads.size(); ++i) {
    if (found.heads[i].empty()) continue;
    DRIFTLESS_RETURN_IF_ERROR(check_table(manifest.files[found.files[i]], found.heads[i]));
  }
  return found;
}

// The ranges of a frame as reads, `at` bytes into the memory. Ranges that adjoin in the part and in
// the memory are one read.
std::vector<DeviceRange> reads_of(const FrameCollector& collector, std::uint64_t at) {
  std::vector<DeviceRange> reads;
  for (std::size_t i = 0; i < collector.ranges().size(); ++i) {
    const FrameRange& range = collector.ranges()[i];
    const std::uint64_t to = at + collector.place_of(i);
    if (!reads.empty()) {
      ByteRange& before = reads.back().range;
      if (before.offset + before.size_bytes == range.offset &&
          reads.back().to + before.size_bytes == to) {
        before.size_bytes += range.size_bytes;
        continue;
      }
    }
    reads.push_back({{range.offset, range.size_bytes}, to});
  }
  return reads;
}

}  // namespace

Result<std::vector<std::vector<std::byte>>> fetch_frame_heads(ReceiveRoad& road,
                                                              const PublicationId& id,
                                                              std::span<const PartReceipt> parts,
                                                              const RangeFetchOptions& options,
                                                              const Deadline& deadline) {
  return HeadFetcher(road, id, options, deadline).fetch(parts);
}

bool may_fetch_blocks(const Manifest& manifest) {
  const bool frames = manifest.directory_layout == DirectoryLayout::kFrames ||
                      manifest.directory_layout == DirectoryLayout::kHdf5;
  // A receiver proves its tensors of a full version by the digests of these tensors.
  return frames && (manifest.encoding != Encoding::kFull || manifest.has_tensor_digests());
}

Result<FetchedBlocks> fetch_blocks(ReceiveRoad& road, const PublicationId& id,
                                   const Manifest& manifest, const WeightLayout& layout,
                                   const FrameCollector::Needed& needed, bool keep,
                                   const RangeFetchOptions& options, const Deadline& deadline,
                                   KeptMemory* memory) {
  DRIFTLESS_ASSIGN_OR_RETURN(TableHeads found,
                             fetch_table_heads(road, id, manifest, options, deadline));
  std::vector<std::vector<std::byte>>& read = found.heads;
  const std::vector<PartReceipt>& parts = found.parts;
  FetchedBlocks blocks;
  std::vector<WantedPart> wanted;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (read[i].empty()) continue;
    const ManifestFile& file = manifest.files[found.files[i]];
    Result<FrameCollector> collector =
        FrameCollector::open(read[i], layout, max_frame_body_bytes(layout), needed, memory);
    if (!collector.ok()) return collector.status().with_context(concat("part ", file.name));
    // A part that is fetched whole has its head again.
    const bool large_head = !keep && read[i].size() > file.size_bytes / kLeastHeadShare;
    if (collector->all() && !file.partial && !large_head) continue;
    blocks.needed_bytes += read[i].size();
    WantedPart& part = wanted.emplace_back();
    part.part = parts[i];
    for (const FrameRange& range : collector->ranges()) {
      part.ranges.push_back({range.offset, range.size_bytes});
    }
    blocks.frames.push_back({found.files[i], std::move(read[i]), std::move(*collector)});
    if (keep) blocks.frames.back().ranges.resize(part.ranges.size());
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const RangeFetchReport report,
                             fetch_wanted(
                                 road, id, wanted, options,
                                 [&](std::size_t part, std::size_t range, const MappedFile& bytes) {
                                   FetchedFrame& frame = blocks.frames[part];
                                   if (keep) frame.ranges[range] = bytes;
                                   const Status taken = frame.collector.take(range, bytes.bytes());
                                   // A partial frame with a missing block does not inflate:
                                   // finish() then names the block.
                                   return manifest.files[frame.file].partial ? Status() : taken;
                                 },
                                 deadline));
  blocks.fetched_bytes = found.fetched_bytes + report.fetched_bytes;
  blocks.needed_bytes += report.needed_bytes;
  return blocks;
}

Result<std::optional<FetchedBlocks>> fetch_blocks_to_device(
    ReceiveRoad& road, const PublicationId& id, const Manifest& manifest,
    const WeightLayout& layout, const FrameCollector::Needed& needed, ArrivalMemory& memory,
    const RangeFetchOptions& options, const Deadline& deadline) {
  constexpr std::uint64_t kFrameAlignment = 256;
  DRIFTLESS_ASSIGN_OR_RETURN(TableHeads found,
                             fetch_table_heads(road, id, manifest, options, deadline));
  FetchedBlocks blocks;
  blocks.fetched_bytes = found.fetched_bytes;
  std::vector<std::uint64_t> places;  // of each frame, in the memory
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < found.parts.size(); ++i) {
    const ManifestFile& file = manifest.files[found.files[i]];
    if (found.heads[i].empty() || file.partial) return std::optional<FetchedBlocks>();
    Result<FrameCollector> collector = FrameCollector::open_on_device(
        found.heads[i], layout, max_frame_body_bytes(layout), needed);
    if (collector.status().code() == StatusCode::kUnsupported) {
      return std::optional<FetchedBlocks>();
    }
    if (!collector.ok()) return collector.status().with_context(concat("part ", file.name));
    places.push_back(bytes);
    bytes += (collector->device_bytes() + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
    blocks.needed_bytes += found.heads[i].size();
    blocks.frames.push_back({found.files[i], std::move(found.heads[i]), std::move(*collector)});
  }
  Result<DeviceSpace> space = memory.take(bytes);
  if (space.status().code() == StatusCode::kNoSpace) return std::optional<FetchedBlocks>();
  if (!space.ok()) return space.status();
  std::vector<std::span<const std::byte>> stretches;
  for (std::size_t k = 0; k < blocks.frames.size(); ++k) {
    FrameCollector& collector = blocks.frames[k].collector;
    std::byte* const at = space->memory.get() + places[k];
    collector.place(std::shared_ptr<std::byte>(space->memory, at));
    const std::vector<DeviceRange> reads = reads_of(collector, places[k]);
    const Status read = road.fetch_to_device(id, found.parts[k], reads, *space, deadline);
    if (!read.ok()) return read.with_context(concat("part ", found.parts[k].name));
    for (std::size_t i = 0; i < collector.ranges().size(); ++i) {
      const std::uint64_t size = collector.ranges()[i].size_bytes;
      stretches.emplace_back(at + collector.place_of(i), size);
      blocks.needed_bytes += size;
      blocks.fetched_bytes += size;
    }
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Hash128> hashes, memory.hash(stretches));
  std::size_t next = 0;
  for (FetchedFrame& frame : blocks.frames) {
    for (std::size_t i = 0; i < frame.collector.ranges().size(); ++i) {
      frame.collector.prove(i, hashes[next++]);
    }
  }
  return std::optional<FetchedBlocks>(std::move(blocks));
}

}  // namespace driftless
