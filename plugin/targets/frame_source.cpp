// SPDX-License-Identifier: Apache-2.0
// VersionSource over buckets, native frames and whole tensors.
#include <algorithm>

#include "core/parallel.h"
#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

Status check_context(const FrameContext& found, const VersionDirectory& version,
                     const WeightLayout& layout) {
  FrameContext expected = found;  // rank and index: held against the others
  expected.id.version = version.version;
  if (version.manifest) expected.id.run = version.manifest->id.run;
  expected.base_version = version.base_version;
  expected.layout = layout.signature();
  expected.encoding = version.encoding;
  if (found == expected) return {};
  return error(StatusCode::kCorrupt, "the frame is of version ", found.id.version, " on ",
               found.base_version, " of run ", to_hex(found.id.run), " in '",
               info(found.encoding).name, "', expected version ", version.version, " on ",
               version.base_version, " of run ", to_hex(expected.id.run), " in '",
               info(version.encoding).name, "'; fetch the version again");
}

class DensePatcher final : public TensorPatcher {
 public:
  DensePatcher(const TensorSpec& tensor, std::span<const DensePiece> pieces)
      : TensorPatcher(tensor), pieces_(pieces) {}

 private:
  Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) override {
    while (!chunk.empty()) {  // the pieces adjoin: check_coverage()
      const DensePiece& piece = pieces_[at_];
      const std::uint64_t skip = byte_offset - piece.byte_offset;
      const std::uint64_t count = std::min<std::uint64_t>(piece.bytes.size() - skip, chunk.size());
      std::copy_n(piece.bytes.data() + skip, count, chunk.data());
      chunk = chunk.subspan(count);
      byte_offset += count;
      if (skip + count == piece.bytes.size()) ++at_;
    }
    return {};
  }

  std::span<const DensePiece> pieces_;
  std::size_t at_ = 0;  // the piece that holds the next byte
};

// Ok if `pieces`, in ascending order, hold every byte of the tensor once.
Status check_covers(const TensorSpec& tensor, std::span<const DensePiece> pieces) {
  std::uint64_t next = 0;
  for (const DensePiece& piece : pieces) {
    if (piece.byte_offset != next) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': bytes from ",
                   std::min(next, piece.byte_offset), " on are ",
                   piece.byte_offset < next ? "there twice" : "missing");
    }
    if (piece.bytes.size() > tensor.size_bytes - next) {
      return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': has ", tensor.size_bytes,
                   " bytes, the version holds more");
    }
    next += piece.bytes.size();
  }
  if (next == tensor.size_bytes) return {};
  return error(StatusCode::kCorrupt, "tensor '", tensor.name, "': has ", tensor.size_bytes,
               " bytes, the version holds ", next);
}

}  // namespace

std::uint64_t max_frame_body_bytes(const WeightLayout& layout) {
  const std::uint64_t rows = layout.total_units() + layout.size();
  return layout.total_bytes() + 8 * layout.total_units() + kFrameEntryBytes * rows + 64;
}

Result<Frame> VersionSource::open_frame(const MappedFile& part, const FrontReader& front) const {
  const std::uint64_t max_body = max_frame_body_bytes(*layout_);
  if (part.memory_kind() == MemoryKind::kHost) {
    return Frame::decode(part.bytes(), *layout_, max_body);
  }
  return Frame::decode_front(front(part), part.bytes(), *layout_, max_body);
}

Status VersionSource::open_frames(std::vector<MappedFile> parts, unsigned threads,
                                  const FrontReader& front) {
  frame_bytes_ = std::move(parts);
  frames_.resize(frame_bytes_.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(frames_.size(), threads, [&](std::size_t i, unsigned) -> Status {
        const std::string what = join_path(version_.path, version_.payload_files[i]);
        Result<Frame> frame = open_frame(frame_bytes_[i], front);
        if (!frame.ok()) return frame.status().with_context(what);
        DRIFTLESS_RETURN_IF_ERROR(
            check_context(frame->info().context, version_, *layout_).with_context(what));
        frames_[i] = std::make_unique<Frame>(std::move(*frame));
        return {};
      }));
  std::vector<std::size_t> order(frames_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto place = [this](std::size_t i) {
    const FrameContext& context = frames_[i]->info().context;
    return std::pair(context.rank, context.index);
  };
  std::sort(order.begin(), order.end(),
            [&place](std::size_t a, std::size_t b) { return place(a) < place(b); });
  std::pair<std::uint32_t, std::uint32_t> expected{0, 0};
  for (const std::size_t i : order) {
    const auto [rank, index] = place(i);
    const std::string& name = version_.payload_files[i];
    if (name != frame_file_name(rank, index)) {
      return error(StatusCode::kCorrupt, join_path(version_.path, name), ": holds frame ", index,
                   " of rank ", rank, "; fetch the version again");
    }
    if (rank != expected.first) expected = {rank, 0};
    if (index != expected.second) {
      return error(StatusCode::kCorrupt, join_path(version_.path, name), ": is frame ", index,
                   " of rank ", rank, ", expected frame ", expected.second,
                   "; fetch the version again");
    }
    ++expected.second;
    const std::string owner = concat("rank ", rank);
    DRIFTLESS_RETURN_IF_ERROR(
        frames_[i]->dense() ? add_runs(name, owner, *frames_[i], frame_bytes_[i].memory_kind())
                            : add_bucket(name, owner, frames_[i]->bucket()));
  }
  return {};
}

// Notes that `rank` changes the tensor; nobody else may.
Status VersionSource::claim(const std::string& name, const std::string& rank,
                            std::uint32_t tensor) {
  const auto [payload, first] = payloads_.try_emplace(tensor);
  if (first) {
    payload->second.source = rank;
    payload->second.change = changes_.size();
    changes_.push_back({tensor, 0, {}});
    return {};
  }
  if (payload->second.source == rank) return {};
  return error(StatusCode::kCorrupt, join_path(version_.path, name), ": tensor '",
               (*layout_)[tensor].name, "' is also published by ", payload->second.source,
               "; only one rank may");
}

Status VersionSource::add_bucket(const std::string& name, const std::string& rank,
                                 const BucketView& bucket) {
  for (const BucketEntry& entry : bucket.entries) {
    DRIFTLESS_RETURN_IF_ERROR(claim(name, rank, entry.tensor));
    Payload& payload = payloads_[entry.tensor];
    payload.pieces.push_back({bucket, entry});
    changes_[payload.change].payload_bytes +=
        entry.position_end - entry.position_begin + entry.count() * unit_bytes(bucket.dtype);
  }
  return {};
}

Status VersionSource::add_runs(const std::string& name, const std::string& rank, const Frame& frame,
                               MemoryKind memory) {
  for (const DenseRun& run : frame.runs()) {
    DRIFTLESS_RETURN_IF_ERROR(claim(name, rank, run.tensor));
    Payload& payload = payloads_[run.tensor];
    const std::uint64_t offset = run.first_unit * unit_bytes((*layout_)[run.tensor].dtype);
    payload.dense.push_back({offset, run.bytes, memory});
    changes_[payload.change].payload_bytes += run.bytes.size();
  }
  return {};
}

// A full version holds every byte of every tensor once.
Status VersionSource::check_coverage() {
  for (std::uint32_t tensor = 0; tensor < layout_->size(); ++tensor) {
    const TensorSpec& spec = (*layout_)[tensor];
    const auto found = payloads_.find(tensor);
    if (found == payloads_.end()) {
      // A frame has no runs of a tensor without units; a safetensors file names it all the same.
      if (spec.size_bytes == 0 && version_.directory_layout != DirectoryLayout::kHfDelta) continue;
      return error(StatusCode::kWrongLayout, version_.path,
                   ": a full version, but it does not hold tensor '", spec.name, "' (",
                   payloads_.size(), " of ", layout_->size(), " tensors)");
    }
    std::vector<DensePiece>& dense = found->second.dense;
    std::sort(dense.begin(), dense.end(), [](const DensePiece& a, const DensePiece& b) {
      return a.byte_offset < b.byte_offset;
    });
    DRIFTLESS_RETURN_IF_ERROR(check_covers(spec, dense).with_context(version_.path));
  }
  return {};
}

std::unique_ptr<TensorPatcher> VersionSource::dense_patcher(const TensorChange& change) const {
  return std::make_unique<DensePatcher>((*layout_)[change.tensor], dense(change));
}

}  // namespace driftless
