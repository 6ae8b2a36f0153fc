// SPDX-License-Identifier: Apache-2.0
// One hf_delta shard per rank: compressed tensors, or whole ones. The store is updated during the
// comparison, so a thread can compress and write earlier tensors meanwhile, from the store's bytes
// and the changes that led to them. Memory: the changes of about two buckets.

#include "plugin/checkpoint/checkpoint_writer.h"
#include "plugin/interchange/hf_shard_writer.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

// A copy of a tensor's changes: the comparison reuses its own memory.
struct KeptChange {
  std::uint32_t number = 0;  // in the store
  unsigned unit_bytes = 1;
  std::uint64_t origin = 0;
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> values, old_values;
};

// Tensors that are ready to be written; the store has their new bytes.
struct ReadyTensors {
  std::vector<std::uint32_t> numbers;
  std::vector<KeptChange> changes;  // for deltas; in the order of `numbers`, then by position
  std::uint64_t size_bytes = 0;     // of the changes, or of whole tensors
};

class ShardPayload final : public RankPayload {
 public:
  explicit ShardPayload(const PayloadContext& context)
      : context_(context), writer_(context.background, context.clock) {
    findings_.shard = shard_file_name(context.frame.rank, context.ranks);
  }

  Status add(std::span<const PairedTensor> batch) override {
    if (full()) return write_whole(batch);
    return context_.store->each_change(batch, context_.dense_above_units, findings_,
                                       [this](const DiffPiece& piece) { return collect(piece); });
  }

  Status finish() override {
    if (!findings_.dense) DRIFTLESS_RETURN_IF_ERROR(hand_over());
    const Status written = writer_.finish();
    if (findings_.dense) return close_unfinished();
    DRIFTLESS_RETURN_IF_ERROR(written);
    // Readers count the shards by their names, so if there are several ranks, each writes one.
    if (!shard_ && context_.ranks == 1 && !full()) {
      findings_.shard.clear();
      return {};
    }
    DRIFTLESS_RETURN_IF_ERROR(open());
    for (const auto& [tensor, checksum] : shard_->checksums()) {
      findings_.tensors.push_back({(*context_.layout)[tensor].name, checksum});
    }
    DRIFTLESS_RETURN_IF_ERROR(shard_->finish().status());
    shard_.reset();
    return {};
  }

 private:
  [[nodiscard]] bool full() const { return context_.frame.encoding == Encoding::kFull; }

  // Too many changes were found after some of the shard was written: the road requires that every
  // part is closed, even before it drops it.
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
    std::vector<std::uint32_t> tensors;  // owned whole; blocks are not written
    for (const OwnedTensor& owned : context_.store->owned()) {
      if (owned.block() == nullptr) tensors.push_back(owned.tensor());
    }
    DRIFTLESS_ASSIGN_OR_RETURN(
        shard_, HfShardWriter::create(std::move(part), *context_.layout, tensors, options));
    return {};
  }

  // Writes from the store, which takes each tensor first.
  Status write_whole(std::span<const PairedTensor> batch) {
    for (const PairedTensor& offered : batch) {
      ready_.numbers.push_back(offered.number);
      DRIFTLESS_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                                 context_.store->take_whole(offered, findings_));
      ready_.size_bytes += bytes.size();
      if (ready_.size_bytes >= context_.buffer_bytes) DRIFTLESS_RETURN_IF_ERROR(hand_over());
    }
    return {};
  }

  // The pieces of a tensor arrive one after the other: the first piece of another tensor completes
  // it.
  Status collect(const DiffPiece& piece) {
    const DeltaView& delta = piece.delta;
    const bool another = ready_.numbers.empty() || ready_.numbers.back() != delta.tensor;
    if (another && ready_.size_bytes >= context_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(hand_over());
    }
    if (another) ready_.numbers.push_back(delta.tensor);
    const std::span<const std::byte> values = delta.value_bytes();
    ready_.changes.push_back({delta.tensor,
                              delta.unit_bytes,
                              delta.origin,
                              {delta.offsets.begin(), delta.offsets.end()},
                              {values.begin(), values.end()},
                              {piece.old_values, piece.old_values + values.size()}});
    ready_.size_bytes += delta.offsets.size_bytes() + 2 * values.size();
    return {};
  }

  Status hand_over() {
    if (ready_.numbers.empty()) return {};
    auto ready = std::make_shared<const ReadyTensors>(std::exchange(ready_, {}));
    return writer_.hand_over([this, ready = std::move(ready)] { return write(*ready); });
  }

  // Runs on the writer's thread.
  Status write(const ReadyTensors& ready) {
    std::vector<HfShardWriter::Changes> changes;
    for (const auto& [number, width, origin, offsets, values, old_values] : ready.changes) {
      const std::uint32_t tensor = context_.store->owned(number).tensor();
      changes.push_back({{tensor, width, origin, offsets, values.data()}, old_values.data()});
    }
    std::vector<HfShardWriter::Tensor> tensors;
    std::size_t at = 0;
    for (const std::uint32_t number : ready.numbers) {
      const std::size_t begin = at;
      while (at < changes.size() && ready.changes[at].number == number) ++at;
      tensors.push_back({context_.store->owned(number).tensor(),
                         {},
                         context_.store->bytes(number),
                         std::span(changes).subspan(begin, at - begin)});
    }
    DRIFTLESS_RETURN_IF_ERROR(open());
    return shard_->add(tensors);
  }

  PayloadContext context_;
  ReadyTensors ready_;                    // not handed over yet
  std::unique_ptr<HfShardWriter> shard_;  // belongs to the writer until it has finished
  BackgroundWriter writer_;               // last: its thread ends before the other members
};

}  // namespace

std::unique_ptr<RankPayload> make_shard_payload(const PayloadContext& context) {
  return std::make_unique<ShardPayload>(context);
}

}  // namespace driftless
