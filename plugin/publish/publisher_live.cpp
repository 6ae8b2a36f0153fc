// SPDX-License-Identifier: Apache-2.0
// A publisher without a snapshot: versions are made from the weights where they lie and from what
// was captured of their changes (LiveWeights).
#include <algorithm>

#include "core/stopwatch.h"
#include "plugin/publish/publisher_rank.h"

namespace driftless {

Status PublisherRank::open_live(WeightSource& live) {
  DRIFTLESS_RETURN_IF_ERROR(check_source(live));
  if (options_.device != nullptr && !takes_blocks()) {
    return error(
        StatusCode::kUnsupported, "layout ", to_string(options_.layout),
        " is made from tensors in host memory, and these lie on a GPU, without a snapshot: "
        "set snapshot: pinned, or publish frames");
  }
  if (encoding_ == Encoding::kCompact && !codes_compact()) {  // also if no receiver is heard
    encoding_ = Encoding::kDeltas;
    buffers_.emplace(layout_, encoding_);
  }
  std::vector<LiveWeights::Place> places(snapshot_.owned().size());
  DRIFTLESS_RETURN_IF_ERROR(visit(
      live,
      [&](std::span<const PairedTensor> batch) {
        for (const PairedTensor& offered : batch) {
          places[offered.number].data = offered.new_data;
          places[offered.number].memory = offered.memory;
        }
        return Status();
      },
      [&](const OfferedTensor& copy) {
        const auto number = static_cast<std::uint32_t>(copy.tensor);
        live_copies_[number] = copy;
        if (live.watched(number)) watched_copies_.insert(number);
        return Status();
      }));
  for (std::size_t i = 0; i < number_.size(); ++i) {
    if (number_[i] != kNotOurs) places[number_[i]].watched = live.watched(i);
  }
  return live_->open(std::move(places));
}

Status PublisherRank::digest_base(WeightSource& base, TensorDigests& copies) {
  tensor_digests_.assign(layout_.size(), Digest());
  part_digest_ = Digest();
  const auto add = [&](std::span<const PairedTensor> batch) -> Status {
    for (const PairedTensor& offered : batch) {
      DRIFTLESS_ASSIGN_OR_RETURN(
          const Digest digest,
          snapshot_.digest(offered.number, offered.new_data, offered.memory, threads_));
      tensor_digests_[snapshot_.owned(offered.number).tensor()] += digest;
      part_digest_ += digest;
    }
    return {};
  };
  return visit(base, add, [&](const OfferedTensor& copy) { return digest_copy(copy, copies); });
}

// After a restart nobody has the weights of the version on the road, unless they are these.
RankMessage PublisherRank::look_at_live(std::uint64_t version) {
  RankMessage mine;
  const Result<std::vector<Digest>> now = live_->sweep();
  mine.status = now.status();
  if (!now.ok()) return mine;
  for (const Digest& digest : *now) mine.digest += digest;
  if (version == 0) return mine;
  tensor_digests_ = *now;
  part_digest_ = mine.digest;
  return mine;
}

void PublisherRank::start_otherwise(std::uint64_t version) {
  needs_full_ = version > 0 || mirrored_;  // the mirror was made of these weights
  live_->doubt(true);
  notes_.push_back(concat("the weights are not those of version ", version,
                          needs_full_ ? ", and there is no snapshot of it: the next version goes "
                                        "out in full"
                                      : ": the next version carries what differs"));
}

Status PublisherRank::capture(std::span<const NewTensor> values, void* stream) {
  if (!live_) {
    return error(StatusCode::kInvalidArgument,
                 "capture() is for publishers without a snapshot: set snapshot: none");
  }
  Stopwatch watch;
  const bool doubtful = live_->doubtful();
  live_->doubt(true);  // also if memory runs out
  const Status captured = capture_blocks(values, stream);
  live_->doubt(doubtful || !captured.ok());
  live_costs_.capture_ms += watch.lap_ms();
  return captured;
}

Status PublisherRank::capture_blocks(std::span<const NewTensor> values, void* stream) {
  std::vector<NewValues> blocks;
  std::vector<bool> seen(number_.size());
  for (const NewTensor& value : values) {
    if (value.tensor >= number_.size()) {
      return error(StatusCode::kInvalidArgument, "capture() of tensor number ", value.tensor,
                   " of ", number_.size());
    }
    const TensorSpec& spec = offered_[value.tensor];
    if (seen[value.tensor]) {
      return error(StatusCode::kInvalidArgument, "capture() of tensor '", spec.name, "' (number ",
                   value.tensor, ") twice in one call");
    }
    seen[value.tensor] = true;
    const std::optional<ValueCast> cast = value_cast(value.dtype, spec.dtype);
    const bool known =
        cast == ValueCast::kNone || cast == ValueCast::kF32ToBF16 || cast == ValueCast::kF32ToF16;
    if (!known) {
      return error(StatusCode::kUnsupported, "tensor '", spec.name, "' is ", info(spec.dtype).name,
                   ", and its new values are ", info(value.dtype).name,
                   ": expected the same type, or float32 for a type of 16 bits");
    }
    if (number_[value.tensor] == kNotOurs) continue;
    blocks.push_back({number_[value.tensor], value.data, *cast, value.memory});
  }
  return live_->capture(blocks, stream);
}

Status PublisherRank::observe(WeightSource& weights, void* stream, bool behind) {
  observed_ = look_at(weights, stream, behind);
  return *observed_;
}

Status PublisherRank::look_at(WeightSource& weights, void* stream, bool behind) {
  DRIFTLESS_RETURN_IF_ERROR(check_source(weights));
  if (!live_) return {};
  DRIFTLESS_RETURN_IF_ERROR(visit(
      weights,
      [&](std::span<const PairedTensor> batch) -> Status {
        for (const PairedTensor& offered : batch) {
          DRIFTLESS_RETURN_IF_ERROR(live_->check(offered.number, offered.new_data));
        }
        return {};
      },
      [&](const OfferedTensor& copy) { return look_at_copy(copy); }));
  DRIFTLESS_RETURN_IF_ERROR(live_->observe(stream, behind));
  return observe_copies();
}

bool PublisherRank::sweep_due() const {
  return options_.sweep_every > 0 && since_sweep_ + 1 >= options_.sweep_every;
}

Status PublisherRank::prove_live(RankMessage& mine) {
  constexpr std::size_t kNamed = 8;
  Stopwatch watch;
  // `compact` is coded with the weights: of others than receivers have nothing could be decoded.
  // A shard has checksums of them.
  const bool all = sweep_due() || live_->doubtful() || reads_weights();
  since_sweep_ = all ? 0 : since_sweep_ + 1;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> differing,
                             live_->prove(tensor_digests_, all));
  for (std::size_t i = 0; i < std::min(differing.size(), kNamed); ++i) {
    mine.notes.push_back(concat("tensor '", layout_[differing[i]].name, "' of publisher rank ",
                                group_.rank(), " was written without capture()",
                                live_->change(differing[i]) != nullptr
                                    ? ": it is sent whole"
                                    : ", or captured and not written: it is as it was"));
  }
  if (differing.size() > kNamed) {
    mine.notes.push_back(concat("and ", differing.size() - kNamed, " further tensors"));
  }
  live_costs_.resent_tensors = live_->whole_tensors();
  live_costs_.sweep_ms += watch.lap_ms();
  return {};
}

Status PublisherRank::prove_read(const RankMessage& mine, bool full) {
  if (full && live_->behind()) {
    DRIFTLESS_RETURN_IF_ERROR(live_->prove_full(tensor_digests_, mine.tensor_digests));
  }
  const bool captured = !full && !reads_weights() && live_->whole_tensors() == 0;
  return captured ? Status() : live_->prove_still(mine.tensor_digests);
}

RankMessage PublisherRank::produce_live(const PayloadContext& made, const Deadline& deadline,
                                        TensorDigests& copies) {
  RankMessage proof;
  const bool full = made.frame.encoding == Encoding::kFull;
  proof.status = live_->freeze(!full && options_.background && sweep_due());
  live_costs_.captured_bytes = live_->held_bytes();
  if (!full && proof.status.ok()) proof.status = prove_live(proof);
  if (full && live_->behind() && proof.status.ok()) {  // what it must be
    proof.status = live_->prove(tensor_digests_, false).status();
  }
  // The layouts of others know a change by its old value, or a whole version.
  proof.needs_full =
      !full && live_->whole_tensors() > 0 && options_.layout == DirectoryLayout::kHfDelta;
  RankMessage mine = write_payload(made, deadline, [&](const AddBatch& add) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(proof.status);
    if (proof.needs_full) return {};
    DRIFTLESS_RETURN_IF_ERROR(digest_live_copies(copies));
    return add(offer_snapshot(false));
  });
  mine.needs_full = proof.needs_full;
  mine.notes = std::move(proof.notes);
  return mine;
}

}  // namespace driftless
