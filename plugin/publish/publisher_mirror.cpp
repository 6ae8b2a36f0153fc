// SPDX-License-Identifier: Apache-2.0
// Layouts of whole tensors (hf_delta, flush), if ranks offer blocks: every rank finds what changed
// of its blocks, the leader gathers that, keeps the whole tensors in a mirror in host memory, and
// writes them as one more rank would. Gathered are the changes; once, at the start, the blocks.
#include <algorithm>
#include <cstring>

#include "plugin/publish/publisher_rank.h"
#include "plugin/targets/version_source.h"

namespace driftless {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{16} << 20;  // of one message between ranks

// Frames, one after the other; their headers say how long they are.
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

// What the frames of all ranks make of one tensor.
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

Status PublisherRank::open_mirror() {
  std::vector<OwnedTensor> whole;
  for (std::uint32_t tensor = 0; tensor < layout_.size(); ++tensor) {
    if (!in_blocks_[tensor]) continue;
    mirrored_ = true;
    DRIFTLESS_ASSIGN_OR_RETURN(OwnedTensor all,
                               OwnedTensor::make(tensor, layout_[tensor], {}, nullptr));
    mirror_bytes_ += layout_[tensor].size_bytes;
    whole.push_back(std::move(all));
  }
  if (!mirrored_) return {};
  block_buffers_.emplace(layout_, Encoding::kDeltas);
  notes_.push_back(concat("layout ", to_string(options_.layout), " has whole tensors: publisher ",
                          "rank 0 keeps a mirror of the ", whole.size(),
                          " that are offered in blocks, ", mirror_bytes_, " bytes of host memory"));
  if (!group_.leads()) return {};
  mirror_buffers_.emplace(layout_, info(encoding_).positional ? encoding_ : Encoding::kDeltas);
  DRIFTLESS_ASSIGN_OR_RETURN(mirror_, Snapshot::create(layout_, std::move(whole)));
  return {};
}

// In pieces: messages between ranks are small. All ranks call it, whatever went before; if a rank
// is not ready, it fails on all.
Result<std::vector<std::string>> PublisherRank::gather_bytes(Status ready, const std::string& mine,
                                                             const Deadline& deadline) {
  RankMessage size;
  size.status = std::move(ready);
  size.version = (mine.size() + kPieceBytes - 1) / kPieceBytes;
  Result<std::vector<RankMessage>> sizes = collect(size, deadline);
  LeaderMessage rounds;
  rounds.status = sizes.status();
  if (sizes.ok() && group_.leads()) {
    for (const RankMessage& rank : *sizes) rounds.version = std::max(rounds.version, rank.version);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const LeaderMessage told, tell(rounds, deadline));
  std::vector<std::string> all(group_.leads() ? group_.size() : 0);
  for (std::uint64_t round = 0; round < told.version; ++round) {
    const std::size_t at = std::min<std::size_t>(mine.size(), round * kPieceBytes);
    DRIFTLESS_ASSIGN_OR_RETURN(
        const std::vector<std::string> pieces,
        group_.gather(std::string_view(mine).substr(at, kPieceBytes), deadline));
    for (std::size_t rank = 0; rank < pieces.size(); ++rank) all[rank] += pieces[rank];
  }
  return all;
}

PayloadContext PublisherRank::block_context(const PayloadContext& made,
                                            std::vector<std::vector<std::byte>>& frames) {
  PayloadContext blocks = made;
  blocks.directory_layout = DirectoryLayout::kFrames;
  blocks.buffers = &*block_buffers_;
  blocks.frames = &frames;
  const bool full = made.frame.encoding == Encoding::kFull;
  blocks.frame.encoding = full ? Encoding::kFull : Encoding::kDeltas;
  return blocks;
}

// Leader: the tensors that the frames change, written from the mirror. `mirror_` moves on.
Status PublisherRank::write_mirror(const PayloadContext& made,
                                   const std::vector<std::string>& messages,
                                   PayloadFindings& findings) {
  PayloadContext whole = made;
  whole.snapshot = &mirror_;
  whole.undo = &mirror_undo_;
  whole.live = nullptr;
  whole.buffers = &*mirror_buffers_;
  whole.frame.rank = group_.size();
  whole.dense_above_units = ~std::uint64_t{0};
  const std::unique_ptr<RankPayload> payload = make_rank_payload(whole);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Frame> frames, frames_of(messages, layout_));
  std::map<std::uint32_t, MirroredTensor> changed = tensors_in(frames, layout_);
  for (std::uint32_t number = 0; number < mirror_.owned().size(); ++number) {
    const auto tensor = changed.find(mirror_.owned(number).tensor());
    if (tensor == changed.end()) continue;
    const std::span<const std::byte> before = mirror_.bytes(number);
    std::vector<std::byte> after(before.begin(), before.end());
    DRIFTLESS_RETURN_IF_ERROR(tensor->second.write(after));
    const PairedTensor offered{number, after.data()};
    DRIFTLESS_RETURN_IF_ERROR(payload->add({&offered, 1}));
  }
  DRIFTLESS_RETURN_IF_ERROR(payload->finish());
  findings.mirror_tensors = payload->findings().tensors;
  findings.mirror_shard = payload->findings().shard;
  findings.delta_bytes += payload->findings().delta_bytes;
  return {};
}

// The blocks of all ranks, once; with the first full version they would come, too.
Status PublisherRank::seed_mirror(Status ready, const Deadline& deadline) {
  if (!mirrored_) return ready;
  std::vector<std::vector<std::byte>> frames;
  const PayloadContext made = context({id_.version, PublicationKind::kVersion}, 0, true);
  const Result<std::unique_ptr<RankPayload>> payload = make_payload(block_context(made, frames));
  if (ready.ok()) ready = payload.status();
  if (ready.ok()) ready = (*payload)->add(offer_snapshot(true));
  if (ready.ok()) ready = (*payload)->finish();
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::vector<std::string> messages,
      gather_bytes(ready, ready.ok() ? message_of(frames) : std::string(), deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Frame> read, frames_of(messages, layout_));
  std::map<std::uint32_t, MirroredTensor> tensors = tensors_in(read, layout_);
  for (std::uint32_t number = 0; number < mirror_.owned().size(); ++number) {
    const auto tensor = tensors.find(mirror_.owned(number).tensor());
    if (tensor == tensors.end()) continue;
    DRIFTLESS_RETURN_IF_ERROR(
        tensor->second.write({mirror_.data(number), mirror_.size_bytes(number)}));
  }
  return {};
}

// The payload of this rank's blocks, gathered and written by the leader. What it found is added to
// `mine`. All ranks call it; one that failed before sends nothing, and then nothing is written.
void PublisherRank::mirror_blocks(const PayloadContext& made, RankPayload* blocks,
                                  const std::vector<std::vector<std::byte>>& frames,
                                  const Deadline& deadline, RankMessage& mine) {
  if (mine.status.ok()) mine.status = blocks->finish();
  const PayloadFindings found = mine.status.ok() ? blocks->findings() : PayloadFindings();
  const bool good = mine.status.ok() && !found.dense && !mine.findings.dense;
  RankMessage ready;
  ready.needs_full = !good;
  const Result<std::vector<RankMessage>> ranks = collect(ready, deadline);
  LeaderMessage go;
  go.status = ranks.status();
  if (ranks.ok() && group_.leads()) {
    go.full = std::ranges::none_of(*ranks, [](const RankMessage& rank) { return rank.needs_full; });
  }
  const Result<LeaderMessage> told = tell(go, deadline);
  if (mine.status.ok()) {
    mine.findings.changed_units += found.changed_units;
    mine.findings.dense = mine.findings.dense || found.dense;
    mine.findings.digests.insert(found.digests.begin(), found.digests.end());
  }
  if (!told.ok()) {
    if (mine.status.ok()) mine.status = told.status();
    return;
  }
  if (!told->full) return;  // of some rank's failure, or because it is dense, all hear soon
  const Result<std::vector<std::string>> messages = gather_bytes({}, message_of(frames), deadline);
  mine.status = messages.status();
  if (!messages.ok() || !group_.leads()) return;
  mine.status = write_mirror(made, *messages, mine.findings);
}

}  // namespace driftless
