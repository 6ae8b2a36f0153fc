// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/block_mirror.h"

#include <algorithm>
#include <cstring>

#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{16} << 20;  // the most in one message between ranks

// Concatenated frames; the header of each has its length.
std::string message_of(const std::vector<std::vector<std::byte>>& frames) {
  std::string text;
  for (const std::vector<std::byte>& frame : frames) {
    text.append(reinterpret_cast<const char*>(frame.data()), frame.size());
  }
  return text;
}

Result<std::vector<Frame>> frames_of(const std::vector<std::string>& messages,
                                     const WeightLayout& layout) {
  std::vector<Frame> frames;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    std::span<const std::byte> rest =
        std::as_bytes(std::span(messages[rank].data(), messages[rank].size()));
    while (!rest.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(const FrameInfo info, read_frame_header(rest));
      if (info.frame_bytes > rest.size()) {
        return error(StatusCode::kCorrupt, "the changes of publisher rank ", rank, " end early");
      }
      DRIFTLESS_ASSIGN_OR_RETURN(Frame frame, Frame::decode(rest.first(info.frame_bytes), layout,
                                                            max_frame_body_bytes(layout)));
      frames.push_back(std::move(frame));
      rest = rest.subspan(info.frame_bytes);
    }
  }
  return frames;
}

// Combines the frames of all ranks for one tensor.
class MirroredTensor {
 public:
  explicit MirroredTensor(const WeightLayout& layout, std::uint32_t tensor)
      : layout_(layout), tensor_(tensor) {}

  void add(const BucketView& bucket, const BucketEntry& entry) {
    pieces_.push_back({bucket, entry});
  }
  void add(const DenseRun& run) { runs_.push_back(run); }

  [[nodiscard]] Status write(std::span<std::byte> bytes) {
    const unsigned unit = unit_bytes(layout_[tensor_].dtype);
    for (const DenseRun& run : runs_) {
      const DensePiece piece{0, run.bytes, MemoryKind::kHost, &run.block->place, run.first_unit};
      DRIFTLESS_RETURN_IF_ERROR(piece.each_stretch(unit, [&](const DensePiece& stretch) {
        std::memcpy(bytes.data() + stretch.byte_offset, stretch.bytes.data(), stretch.bytes.size());
        return Status();
      }));
    }
    if (pieces_.empty()) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<TensorPatcher> patcher,
                               make_bucket_patcher(layout_, tensor_, pieces_));
    DRIFTLESS_RETURN_IF_ERROR(patcher->patch(0, bytes));
    return patcher->finish();
  }

 private:
  const WeightLayout& layout_;
  std::uint32_t tensor_;
  std::vector<BucketPiece> pieces_;
  std::vector<DenseRun> runs_;
};

std::map<std::uint32_t, MirroredTensor> tensors_in(const std::vector<Frame>& frames,
                                                   const WeightLayout& layout) {
  std::map<std::uint32_t, MirroredTensor> tensors;
  const auto at = [&](std::uint32_t tensor) -> MirroredTensor& {
    return tensors.try_emplace(tensor, layout, tensor).first->second;
  };
  for (const Frame& frame : frames) {
    for (const BucketEntry& entry : frame.bucket().entries) {
      at(entry.tensor).add(frame.bucket(), entry);
    }
    for (const DenseRun& run : frame.runs()) at(run.tensor).add(run);
  }
  return tensors;
}

}  // namespace

Result<std::unique_ptr<BlockMirror>> BlockMirror::open(Group& group, const RunState& run,
                                                       unsigned threads) {
  std::unique_ptr<BlockMirror> mirror(new BlockMirror(group, run));
  std::vector<OwnedTensor> whole;
  for (std::uint32_t tensor = 0; tensor < run.layout.size(); ++tensor) {
    if (!run.in_blocks[tensor]) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(OwnedTensor all,
                               OwnedTensor::make(tensor, run.layout[tensor], {}, nullptr));
    mirror->size_bytes_ += run.layout[tensor].size_bytes;
    whole.push_back(std::move(all));
  }
  mirror->tensors_ = whole.size();
  if (!group.leads()) return mirror;
  mirror->whole_buffers_.emplace(run.layout, run.shape.encoding);
  DRIFTLESS_ASSIGN_OR_RETURN(mirror->whole_,
                             SnapshotStore::create(run.layout, std::move(whole), threads));
  return mirror;
}

// Gathers in pieces, because messages between ranks must be small. All ranks call it, also after a
// failure; if one is not ready, it fails on all of them.
Result<std::vector<std::string>> BlockMirror::gather(Status ready, const std::string& mine,
                                                     const Deadline& deadline) {
  const CountMessage pieces{std::move(ready), (mine.size() + kPieceBytes - 1) / kPieceBytes};
  const Result<std::vector<CountMessage>> sizes = collect(group_, pieces, deadline);
  CountMessage rounds{sizes.status()};
  if (sizes.ok()) {
    for (const CountMessage& rank : *sizes) rounds.count = std::max(rounds.count, rank.count);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const CountMessage agreed,
                             broadcast_checked(group_, rounds, deadline));
  std::vector<std::string> all(group_.leads() ? group_.size() : 0);
  for (std::uint64_t round = 0; round < agreed.count; ++round) {
    const std::size_t at = std::min<std::size_t>(mine.size(), round * kPieceBytes);
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::vector<std::string> found,
        group_.gather(std::string_view(mine).substr(at, kPieceBytes), deadline));
    for (std::size_t rank = 0; rank < found.size(); ++rank) all[rank] += found[rank];
  }
  return all;
}

PayloadContext BlockMirror::block_context(const PayloadContext& made, Frames& frames) {
  PayloadContext blocks = made;
  blocks.directory_layout = DirectoryLayout::kFrames;
  blocks.buffers = &block_buffers_;
  blocks.frames = &frames;
  const bool full = made.frame.encoding == Encoding::kFull;
  blocks.frame.encoding = full ? Encoding::kFull : Encoding::kDeltas;
  return blocks;
}

Status BlockMirror::write_whole(const PayloadContext& made,
                                const std::vector<std::string>& messages,
                                PayloadFindings& findings) {
  PayloadContext whole = made;
  whole.store = whole_.get();
  whole.buffers = &*whole_buffers_;
  whole.frame.rank = group_.size();
  whole.dense_above_units = ~std::uint64_t{0};
  const std::unique_ptr<RankPayload> payload = make_rank_payload(whole);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Frame> frames, frames_of(messages, layout_));
  std::map<std::uint32_t, MirroredTensor> changed = tensors_in(frames, layout_);
  for (std::uint32_t number = 0; number < whole_->owned().size(); ++number) {
    const auto tensor = changed.find(whole_->owned(number).tensor());
    if (tensor == changed.end()) continue;
    const std::span<const std::byte> before = whole_->bytes(number);
    std::vector<std::byte> after(before.begin(), before.end());
    DRIFTLESS_RETURN_IF_ERROR(tensor->second.write(after));
    const PairedTensor offered{number, after.data()};
    DRIFTLESS_RETURN_IF_ERROR(payload->add({&offered, 1}));
  }
  DRIFTLESS_RETURN_IF_ERROR(payload->finish());
  findings.mirror_tensors = payload->findings().tensors;
  findings.mirror_shard = payload->findings().shard;
  return {};
}

Status BlockMirror::seed(Status ready, const Frames& frames, const Deadline& deadline) {
  const std::string mine = ready.ok() ? message_of(frames) : std::string();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> messages,
                             gather(std::move(ready), mine, deadline));
  if (!group_.leads()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Frame> read, frames_of(messages, layout_));
  std::map<std::uint32_t, MirroredTensor> tensors = tensors_in(read, layout_);
  for (std::uint32_t number = 0; number < whole_->owned().size(); ++number) {
    const auto tensor = tensors.find(whole_->owned(number).tensor());
    if (tensor == tensors.end()) continue;
    DRIFTLESS_RETURN_IF_ERROR(
        tensor->second.write({whole_->data(number), whole_->size_bytes(number)}));
  }
  return {};
}

void BlockMirror::write(const PayloadContext& made, RankPayload* blocks, const Frames& frames,
                        const Deadline& deadline, PayloadMessage& mine) {
  if (mine.status.ok()) mine.status = blocks->finish();
  const PayloadFindings found = mine.status.ok() ? blocks->findings() : PayloadFindings();
  const bool good = mine.status.ok() && !found.dense && !mine.findings.dense;
  const Result<std::vector<CountMessage>> ranks =
      collect(group_, CountMessage{{}, good ? 1U : 0U}, deadline);
  CountMessage go{ranks.status()};
  if (ranks.ok()) {
    go.count = std::ranges::all_of(*ranks, [](const CountMessage& rank) { return rank.count > 0; });
  }
  const Result<CountMessage> agreed = broadcast_checked(group_, go, deadline);
  if (mine.status.ok()) {
    mine.findings.changed_units += found.changed_units;
    mine.findings.dense = mine.findings.dense || found.dense;
    mine.findings.digests.insert(found.digests.begin(), found.digests.end());
    mine.findings.units.insert(found.units.begin(), found.units.end());
  }
  if (!agreed.ok()) {
    if (mine.status.ok()) mine.status = agreed.status();
    return;
  }
  if (agreed->count == 0) {
    return;  // a rank failed or found too many changes; conclude() handles that
  }
  const Result<std::vector<std::string>> messages = gather({}, message_of(frames), deadline);
  mine.status = messages.status();
  if (!messages.ok() || !group_.leads()) return;
  mine.status = write_whole(made, *messages, mine.findings);
}

void BlockMirror::commit() {
  if (whole_) whole_->commit();
}

void BlockMirror::roll_back() {
  if (whole_) whole_->roll_back();
}

}  // namespace driftless
