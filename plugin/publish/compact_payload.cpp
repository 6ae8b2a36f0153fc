// SPDX-License-Identifier: Apache-2.0
// Writes frames of `compact`, made from the store's bytes and the changes that led to them. The
// store is updated during the comparison, so a thread can code and write earlier tensors meanwhile.
// Memory: the changes of about two frames, or of two tensors if those are larger. Changes that
// cannot or must not be coded are written as `deltas`.
#include <algorithm>

#include "plugin/checkpoint/compact_writer.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {
namespace {

class CompactPayload final : public RankPayload {
 public:
  explicit CompactPayload(const PayloadContext& context)
      : context_(context),
        plain_(*context.layout, Encoding::kDeltas),
        writer_(context.background, context.clock) {}

  Status add(std::span<const PairedTensor> batch) override {
    return context_.store->each_change(batch, context_.dense_above_units, findings_,
                                       [this](const DiffPiece& piece) { return collect(piece); });
  }
  Status finish() override {
    if (findings_.dense) return writer_.finish();
    DRIFTLESS_RETURN_IF_ERROR(complete());
    DRIFTLESS_RETURN_IF_ERROR(hand_over());
    DRIFTLESS_RETURN_IF_ERROR(hand_over_plain());
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
    if (dtype != dtype_ || ready_bytes_ >= full_at()) DRIFTLESS_RETURN_IF_ERROR(hand_over());
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
    if (ready_.empty() || ready_.back().tensor != delta.tensor || ready_.back().block != block) {
      ready_.push_back({delta.tensor, block, context_.store->data(number_), inside, {}});
    }
    ready_bytes_ += ready_.back().add(delta, old_values);
  }

  // Twice the size at which other encodings fill a frame: a change takes twice the bytes here.
  [[nodiscard]] std::uint64_t full_at() const {
    constexpr std::uint64_t kFirstBytes = std::uint64_t{4} << 20;
    return std::min(2 * context_.buffer_bytes, std::max(kFirstBytes, handed_bytes_ / 4));
  }

  Status hand_over() {
    if (ready_.empty()) return {};
    handed_bytes_ += std::exchange(ready_bytes_, 0);
    auto ready = std::make_shared<const std::vector<ChangedBlock>>(std::exchange(ready_, {}));
    return writer_.hand_over([this, dtype = dtype_, ready = std::move(ready)] {
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
    if (!plain_.accepts(delta) || plain_.size_bytes() >= context_.buffer_bytes) {
      DRIFTLESS_RETURN_IF_ERROR(hand_over_plain());
    }
    return plain_.add(delta, block);
  }

  // Waits until it is written, because it is small.
  Status hand_over_plain() {
    if (plain_.empty()) return {};
    DRIFTLESS_RETURN_IF_ERROR(writer_.hand_over([this] {
      PayloadContext context = context_;
      context.frame.encoding = Encoding::kDeltas;
      return write_bucket(context, plain_.view(), parts_++, findings_);
    }));
    DRIFTLESS_RETURN_IF_ERROR(writer_.finish());
    plain_.clear();
    return {};
  }

  PayloadContext context_;
  std::uint32_t number_ = 0;            // the store's number of the tensor being collected
  const OwnedTensor* owned_ = nullptr;  // its place, while its pieces arrive
  BlockSplitter values_, old_values_;   // for a tensor that is cut
  std::vector<ChangedBlock> ready_;     // not handed over yet
  DType dtype_ = DType::kU8;            // of ready_
  std::uint64_t ready_bytes_ = 0;       // of the changes in ready_
  std::uint64_t handed_bytes_ = 0;      // of all earlier changes
  BucketBuilder plain_;                 // for changes that are not coded
  std::uint32_t parts_ = 0;
  BackgroundWriter writer_;  // last: its thread ends before the other members
};

}  // namespace

std::unique_ptr<RankPayload> make_compact_payload(const PayloadContext& context) {
  return std::make_unique<CompactPayload>(context);
}

}  // namespace driftless
