// SPDX-License-Identifier: Apache-2.0
// One hf_delta shard per rank: compressed tensors, or whole ones. The snapshot moves on with the
// comparison, so that a thread of its own can compress and write what was compared before: from the
// snapshot's bytes and the changes that led to them. Held are the changes of about two buckets.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/tensor_ops.h"
#include "plugin/checkpoint/hf_shard_writer.h"
#include "plugin/publish/background_writer.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

std::string shard_name(std::uint32_t rank, std::uint32_t ranks) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "model-%05u-of-%05u.safetensors", rank, ranks);
  return name.data();
}

// What one tensor's delta is made of. Owns it: the comparison's own memory is used again.
struct KeptChange {
  StoredDelta delta;
  std::vector<std::byte> old_values;
};

// Tensors that are ready to be written: their new bytes are in the snapshot.
struct ReadyTensors {
  std::vector<std::uint32_t> tensors;
  std::vector<KeptChange> changes;  // of deltas, ascending by tensor's turn and position
  std::uint64_t size_bytes = 0;     // of the changes; of a full version: of the tensors
};

class ShardPayload final : public RankPayload {
 public:
  explicit ShardPayload(const PayloadContext& context)
      : context_(context), writer_(context.background) {
    findings_.shard = shard_name(context.frame.rank, context.ranks);
  }

  Status add(std::span<const PairedTensor> batch) override {
    if (findings_.dense) return {};
    return full() ? take_whole(batch) : compare(batch);
  }

  Status finish() override {
    const Status handed = findings_.dense ? Status() : hand_over();
    const Status written = writer_.finish();
    if (findings_.dense) return close_unfinished();
    DRIFTLESS_RETURN_IF_ERROR(handed);
    DRIFTLESS_RETURN_IF_ERROR(written);
    // Readers count the shards by their names, so with several ranks each writes one.
    if (!shard_ && context_.ranks == 1 && !full()) {
      findings_.shard.clear();
      return {};
    }
    DRIFTLESS_RETURN_IF_ERROR(open());
    for (const auto& [tensor, checksum] : shard_->checksums()) {
      findings_.tensors.push_back({(*context_.layout)[tensor].name, checksum});
    }
    DRIFTLESS_ASSIGN_OR_RETURN(findings_.delta_bytes, shard_->finish());
    shard_.reset();
    return {};
  }

 private:
  [[nodiscard]] bool full() const { return context_.frame.encoding == Encoding::kFull; }
  [[nodiscard]] DigestTensorKey key(std::uint32_t tensor) const {
    return digest_tensor_key((*context_.layout)[tensor].name);
  }

  // Dense was found after some of it was written: the road takes no part that is still open, also
  // where it is about to drop it.
  Status close_unfinished() {
    if (!shard_) return {};
    const Status closed = shard_->finish().status();
    shard_.reset();
    return closed;
  }

  Status open() {
    if (shard_) return {};
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> part,
                               context_.road->create_part(findings_.shard));
    const ShardOptions options{context_.frame.encoding, context_.checksum, context_.threads};
    DRIFTLESS_ASSIGN_OR_RETURN(shard_,
                               HfShardWriter::create(std::move(part), *context_.layout,
                                                     context_.snapshot->tensors(), options));
    return {};
  }

  // The snapshot takes each tensor, from where it is written.
  Status take_whole(std::span<const PairedTensor> batch) {
    for (const PairedTensor& offered : batch) {
      const std::uint64_t size = (*context_.layout)[offered.tensor].size_bytes;
      const std::span<const std::byte> bytes(offered.new_data, size);
      findings_.digest +=
          digest_tensor(host_kernels(), key(offered.tensor), bytes, context_.threads);
      std::byte* const kept = context_.snapshot->data(offered.tensor);
      // An anchor is made from the snapshot itself.
      if (kept != offered.new_data) std::ranges::copy(bytes, kept);
      ready_.tensors.push_back(offered.tensor);
      ready_.size_bytes += size;
      if (ready_.size_bytes >= context_.buffer_bytes) DRIFTLESS_RETURN_IF_ERROR(hand_over());
    }
    return {};
  }

  Status compare(std::span<const PairedTensor> batch) {
    std::vector<TensorPair> pairs;
    for (const PairedTensor& offered : batch) {
      const TensorSpec& spec = (*context_.layout)[offered.tensor];
      pairs.push_back({offered.tensor, unit_bytes(spec.dtype), spec.units(),
                       context_.snapshot->data(offered.tensor), offered.new_data});
    }
    DiffOptions options;
    options.threads = context_.threads;
    options.old_values = true;
    const Status status = diff_tensors(
        host_kernels(), pairs, options, [this](const DiffPiece& piece) { return absorb(piece); },
        [this](const DiffPiece& piece) { return collect(piece); });
    return findings_.dense ? Status() : status;  // stopped on purpose
  }

  // While the piece is in the cache: the old values are kept, the snapshot takes the new ones.
  Status absorb(const DiffPiece& piece) {
    if (piece.delta.count() == 0) return {};
    const std::uint32_t tensor = piece.pair->tensor;
    DRIFTLESS_ASSIGN_OR_RETURN(
        const Digest change,
        context_.undo->apply(host_kernels(), key(tensor), context_.snapshot->data(tensor),
                             piece.delta, piece.old_values));
    const std::scoped_lock lock(mutex_);
    findings_.digest_change += change;
    findings_.changed_units += piece.delta.count();
    findings_.dense = findings_.changed_units > context_.dense_above_units;
    return findings_.dense ? error(StatusCode::kUnsupported, "dense") : Status();
  }

  // A tensor's pieces come one after the other: with the first of another it is complete.
  Status collect(const DiffPiece& piece) {
    const DeltaView& delta = piece.delta;
    const bool another = ready_.tensors.empty() || ready_.tensors.back() != delta.tensor;
    if (another && ready_.size_bytes >= context_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(hand_over());
    }
    if (another) {
      ready_.tensors.push_back(delta.tensor);
      ++findings_.changed_tensors;
    }
    const std::span<const std::byte> values = delta.value_bytes();
    ready_.changes.push_back({{delta.tensor,
                               delta.unit_bytes,
                               delta.origin,
                               {delta.offsets.begin(), delta.offsets.end()},
                               {values.begin(), values.end()}},
                              {piece.old_values, piece.old_values + values.size()}});
    ready_.size_bytes += delta.offsets.size_bytes() + 2 * values.size();
    return {};
  }

  Status hand_over() {
    if (ready_.tensors.empty()) return writer_.status();
    auto ready = std::make_shared<const ReadyTensors>(std::exchange(ready_, {}));
    return writer_.hand_over([this, ready = std::move(ready)] { return write(*ready); });
  }

  // On the writer's thread.
  Status write(const ReadyTensors& ready) {
    std::vector<HfShardWriter::Changes> changes;
    for (const KeptChange& change : ready.changes) {
      changes.push_back({change.delta.view(), change.old_values.data()});
    }
    std::vector<HfShardWriter::Tensor> tensors;
    std::size_t at = 0;
    for (const std::uint32_t tensor : ready.tensors) {
      const std::size_t begin = at;
      while (at < changes.size() && changes[at].delta.tensor == tensor) ++at;
      tensors.push_back({tensor,
                         {},
                         context_.snapshot->bytes(tensor),
                         std::span(changes).subspan(begin, at - begin)});
    }
    DRIFTLESS_RETURN_IF_ERROR(open());
    return shard_->add(tensors);
  }

  PayloadContext context_;
  std::mutex mutex_;                      // for the findings while pieces are compared
  ReadyTensors ready_;                    // not handed over yet
  std::unique_ptr<HfShardWriter> shard_;  // the writer's, until it has finished
  BackgroundWriter writer_;               // last: its thread ends before what it uses
};

}  // namespace

std::unique_ptr<RankPayload> make_shard_payload(const PayloadContext& context) {
  return std::make_unique<ShardPayload>(context);
}

}  // namespace driftless
