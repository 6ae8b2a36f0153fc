// SPDX-License-Identifier: Apache-2.0
// Writes frames of `compact`, made from the store's bytes and the changes that led to them. The
// store is updated during the comparison, so a thread can code and write earlier tensors meanwhile.
// A frame holds one type. Memory: the changes of about two frames, or of two tensors if those are
// larger, and of one frame for each further type. Changes that cannot or must not be coded are
// written as `deltas`: one frame for each type, likewise.
#include <algorithm>

#include "plugin/checkpoint/compact_writer.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

class CompactPayload final : public RankPayload {
 public:
  explicit CompactPayload(const PayloadContext& context)
      : context_(context), writer_(context.background, context.clock) {}

  Status add(std::span<const PairedTensor> batch) override {
    return context_.store->each_change(batch, context_.dense_above_units, findings_,
                                       [this](const DiffPiece& piece) { return collect(piece); });
  }
  Status finish() override {
    if (findings_.dense) return writer_.finish();
    DRIFTLESS_RETURN_IF_ERROR(complete());
    for (auto& [dtype, ready] : ready_) DRIFTLESS_RETURN_IF_ERROR(hand_over(dtype, ready));
    for (auto& [dtype, bucket] : plain_) DRIFTLESS_RETURN_IF_ERROR(hand_over_plain(bucket));
    return writer_.finish();
  }

 private:
  // Whether number_'s tensor is coded. A tensor that is sent whole has no old values.
  [[nodiscard]] bool is_coded(std::uint32_t tensor) const {
    return compact_fields((*context_.layout)[tensor].dtype) &&
           !std::ranges::binary_search(context_.plain, tensor) &&
           !context_.store->sent_whole(number_);
  }

  // The pieces of a tensor arrive one after the other: the first piece of another tensor completes
  // it.
  Status collect(const DiffPiece& piece) {
    const OwnedTensor& owned = context_.store->owned(piece.delta.tensor);
    if (owned_ != &owned) {
      DRIFTLESS_RETURN_IF_ERROR(complete());
      number_ = piece.delta.tensor;
      DRIFTLESS_RETURN_IF_ERROR(begin(owned));
    }
    DeltaView delta = piece.delta;
    delta.tensor = owned.tensor();
    const bool coded = is_coded(owned.tensor());
    if (owned.parts().empty()) {
      if (!coded) return put_plain(delta, owned.block());
      keep(owned.block(), BlockPlace::all(owned.place().units), delta, piece.old_values);
      return {};
    }
    values_.add(owned, delta);
    delta.values = piece.old_values;
    if (coded) old_values_.add(owned, delta);
    return {};
  }

  Status begin(const OwnedTensor& owned) {
    owned_ = &owned;
    const DType dtype = (*context_.layout)[owned.tensor()].dtype;
    if (!is_coded(owned.tensor())) return {};
    const std::uint64_t most = dtype == dtype_ ? full_at() : std::min(full_at(), kWorthAFrame);
    Ready& ready = ready_[dtype_];
    if (ready.bytes >= most) DRIFTLESS_RETURN_IF_ERROR(hand_over(dtype_, ready));
    dtype_ = dtype;
    return {};
  }

  // Hands over the blocks of a tensor that is cut.
  Status complete() {
    if (values_.owned() == nullptr) return {};
    if (!is_coded(owned_->tensor())) {
      return values_.take([this](const DeltaView& delta, const TensorBlock* block) {
        return put_plain(delta, block);
      });
    }
    std::vector<std::vector<std::byte>> before;  // by piece
    DRIFTLESS_RETURN_IF_ERROR(old_values_.take([&](const DeltaView& delta, const TensorBlock*) {
      before.emplace_back(delta.value_bytes().begin(), delta.value_bytes().end());
      return Status();
    }));
    std::size_t k = 0;
    return values_.take([&](const DeltaView& delta, const TensorBlock* block) {
      const auto part = std::ranges::find(
          owned_->parts(), block, [](const OwnedTensor::Part& each) { return &each.block; });
      keep(block, part->inside, delta, before[k++].data());
      return Status();
    });
  }

  void keep(const TensorBlock* block, const BlockPlace& inside, const DeltaView& delta,
            const std::byte* old_values) {
    auto& [blocks, bytes] = ready_[(*context_.layout)[delta.tensor].dtype];
    if (blocks.empty() || blocks.back().tensor != delta.tensor || blocks.back().block != block) {
      blocks.push_back({delta.tensor, block, context_.store->data(number_), inside, {}});
    }
    bytes += blocks.back().add(delta, old_values);
  }

  // Changes of this many bytes are coded while tensors of another type are compared; fewer wait for
  // the next tensor of their type, so that codes with some scales between them do not become many
  // small frames.
  static constexpr std::uint64_t kWorthAFrame = std::uint64_t{256} << 10;
  // Twice the size at which other encodings fill a frame: a change takes twice the bytes here.
  [[nodiscard]] std::uint64_t full_at() const {
    constexpr std::uint64_t kFirstBytes = std::uint64_t{4} << 20;
    return std::min(2 * context_.buffer_bytes, std::max(kFirstBytes, handed_bytes_ / 4));
  }

  // Changed blocks of one type that are not handed over yet.
  struct Ready {
    std::vector<ChangedBlock> blocks;
    std::uint64_t bytes = 0;  // of their changes
  };
  Status hand_over(DType dtype, Ready& of_type) {
    if (of_type.blocks.empty()) return {};
    handed_bytes_ += of_type.bytes;
    auto ready =
        std::make_shared<const std::vector<ChangedBlock>>(std::exchange(of_type, {}).blocks);
    return writer_.hand_over([this, dtype, ready = std::move(ready)] {
      FrameContext frame = context_.frame;
      frame.index = parts_++;
      std::vector<std::byte>& encoded = context_.buffers->encoded;
      encoded.clear();
      DRIFTLESS_RETURN_IF_ERROR(
          encode_changed_blocks(frame, *context_.layout, dtype, *ready, context_.threads, encoded));
      return put_frame(context_, frame_file_name(frame.rank, frame.index), encoded, findings_);
    });
  }

  Status put_plain(const DeltaView& delta, const TensorBlock* block) {
    BucketBuilder& bucket = plain_
                                .try_emplace((*context_.layout)[delta.tensor].dtype,
                                             *context_.layout, Encoding::kDeltas)
                                .first->second;
    if (bucket.size_bytes() >= context_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(hand_over_plain(bucket));
    }
    return bucket.add(delta, block);
  }

  // Waits until it is written, because it is small.
  Status hand_over_plain(BucketBuilder& bucket) {
    if (bucket.empty()) return {};
    DRIFTLESS_RETURN_IF_ERROR(writer_.hand_over([this, &bucket] {
      PayloadContext context = context_;
      context.frame.encoding = Encoding::kDeltas;
      return write_bucket(context, bucket.view(), parts_++, findings_);
    }));
    DRIFTLESS_RETURN_IF_ERROR(writer_.finish());
    bucket.clear();
    return {};
  }

  PayloadContext context_;
  std::uint32_t number_ = 0;            // the store's number of the tensor being collected
  const OwnedTensor* owned_ = nullptr;  // its place, while its pieces arrive
  BlockSplitter values_, old_values_;   // for a tensor that is cut
  std::map<DType, Ready> ready_;
  DType dtype_ = DType::kU8;              // of the tensor before
  std::uint64_t handed_bytes_ = 0;        // of all earlier changes
  std::map<DType, BucketBuilder> plain_;  // for changes that are not coded
  std::uint32_t parts_ = 0;
  BackgroundWriter writer_;  // last: its thread ends before the other members
};

}  // namespace

std::unique_ptr<RankPayload> make_compact_payload(const PayloadContext& context) {
  return std::make_unique<CompactPayload>(context);
}

}  // namespace driftless
