// One hf_delta shard per rank: compressed tensors, or whole ones.
#include <algorithm>
#include <array>
#include <cstdio>

#include "kernels/tensor_ops.h"
#include "plugin/hf_shard_writer.h"
#include "plugin/rank_payload.h"

namespace driftless {
namespace {

std::string shard_name(std::uint32_t rank, std::uint32_t ranks) {
  std::array<char, 48> name{};
  std::snprintf(name.data(), name.size(), "model-%05u-of-%05u.safetensors", rank, ranks);
  return name.data();
}

class ShardPayload final : public RankPayload {
 public:
  explicit ShardPayload(const PayloadContext& context) : context_(context) {
    findings_.shard = shard_name(context.frame.rank, context.ranks);
  }

  Status add(std::span<const PairedTensor> batch) override {
    if (findings_.dense) return {};
    std::vector<HfShardWriter::Tensor> sides;
    std::vector<StoredDelta> deltas;  // kept until the shard has taken both sides
    if (full()) {
      for (const PairedTensor& offered : batch) {
        findings_.digest +=
            digest_tensor(host_kernels(), key(offered.tensor), bytes_of(offered), context_.threads);
        sides.push_back({offered.tensor, {}, bytes_of(offered)});
      }
    } else {
      DRIFTLESS_RETURN_IF_ERROR(compare(batch, deltas));
      if (findings_.dense) return {};
      std::vector<bool> changed(context_.layout->size());
      for (const StoredDelta& delta : deltas) changed[delta.tensor] = true;
      for (const PairedTensor& offered : batch) {
        if (!changed[offered.tensor]) continue;
        sides.push_back(
            {offered.tensor, context_.snapshot->bytes(offered.tensor), bytes_of(offered)});
      }
      findings_.changed_tensors += sides.size();
    }
    if (!sides.empty()) {
      DRIFTLESS_RETURN_IF_ERROR(open());
      DRIFTLESS_RETURN_IF_ERROR(shard_->add(sides));
    }
    return absorb(batch, deltas);
  }

  Status finish() override {
    if (findings_.dense) return close_unfinished();
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
  [[nodiscard]] std::span<const std::byte> bytes_of(const PairedTensor& offered) const {
    return {offered.new_data, (*context_.layout)[offered.tensor].size_bytes};
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

  Status compare(std::span<const PairedTensor> batch, std::vector<StoredDelta>& deltas) {
    std::vector<TensorPair> pairs;
    for (const PairedTensor& offered : batch) {
      const TensorSpec& spec = (*context_.layout)[offered.tensor];
      pairs.push_back({offered.tensor, unit_bytes(spec.dtype), spec.units(),
                       context_.snapshot->data(offered.tensor), offered.new_data});
    }
    DiffOptions options;
    options.threads = context_.threads;
    const Status status =
        diff_tensors(host_kernels(), pairs, options, {}, [&](const DiffPiece& piece) -> Status {
          const DeltaView& delta = piece.delta;
          findings_.changed_units += delta.count();
          findings_.dense = findings_.changed_units > context_.dense_above_units;
          if (findings_.dense) return error(StatusCode::kUnsupported, "dense");
          const std::span<const std::byte> values = delta.value_bytes();
          deltas.push_back({delta.tensor,
                            delta.unit_bytes,
                            delta.origin,
                            {delta.offsets.begin(), delta.offsets.end()},
                            {values.begin(), values.end()}});
          return {};
        });
    return findings_.dense ? Status() : status;
  }

  // The snapshot takes what the shard now holds.
  Status absorb(std::span<const PairedTensor> batch, const std::vector<StoredDelta>& deltas) {
    if (full()) {
      for (const PairedTensor& offered : batch) {
        std::byte* const kept = context_.snapshot->data(offered.tensor);
        if (kept == offered.new_data) continue;  // an anchor is made from the snapshot itself
        std::ranges::copy(bytes_of(offered), kept);
      }
      return {};
    }
    for (const StoredDelta& delta : deltas) {
      DRIFTLESS_ASSIGN_OR_RETURN(
          const Digest change,
          context_.undo->apply(host_kernels(), key(delta.tensor),
                               context_.snapshot->data(delta.tensor), delta.view()));
      findings_.digest_change += change;
    }
    return {};
  }

  PayloadContext context_;
  std::unique_ptr<HfShardWriter> shard_;
};

}  // namespace

std::unique_ptr<RankPayload> make_shard_payload(const PayloadContext& context) {
  return std::make_unique<ShardPayload>(context);
}

}  // namespace driftless
