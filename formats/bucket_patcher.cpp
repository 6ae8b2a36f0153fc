// SPDX-License-Identifier: Apache-2.0
// Patches a tensor from its entries in buckets.
#include <cstring>
#include <optional>

#include "formats/chunk_order.h"
#include "formats/tensor_patcher.h"

namespace driftless {
namespace {

class BucketPatcher final : public TensorPatcher {
 public:
  BucketPatcher(const WeightLayout& layout, std::uint32_t tensor, std::vector<BucketPiece> pieces)
      : layout_(&layout), order_(layout[tensor]), pieces_(std::move(pieces)) {}

  Status patch(std::uint64_t byte_offset, std::span<std::byte> chunk) override {
    DRIFTLESS_RETURN_IF_ERROR(order_.advance(byte_offset, chunk.size()));
    while (true) {
      if (at_ == view_.count()) {
        if (const Status status = refill(); !status.ok()) return order_.fail(status);
        if (view_.count() == 0) return {};
      }
      switch (view_.unit_bytes) {
        case 1: overwrite<1>(byte_offset, chunk); break;
        case 2: overwrite<2>(byte_offset, chunk); break;
        case 4: overwrite<4>(byte_offset, chunk); break;
        default: overwrite<8>(byte_offset, chunk); break;
      }
      if (at_ < view_.count()) return {};  // the rest lies past this chunk
    }
  }

  Status finish() override {
    DRIFTLESS_RETURN_IF_ERROR(order_.finish());
    if (at_ == view_.count()) {
      if (const Status status = refill(); !status.ok()) return order_.fail(status);
    }
    if (view_.count() == 0) return {};
    return error(StatusCode::kInternal, order_.context(), ": changes are left over");
  }

 private:
  template <unsigned kUnitBytes>
  void overwrite(std::uint64_t byte_offset, std::span<std::byte> chunk) {
    // A view's positions lie within the tensor, so none of this overflows.
    const std::uint64_t end = (byte_offset + chunk.size()) / kUnitBytes;
    const std::uint64_t begin = byte_offset / kUnitBytes;
    const std::size_t count = view_.offsets.size();
    for (; at_ < count; ++at_) {
      const std::uint64_t position = view_.origin + view_.offsets[at_];
      if (position >= end) return;
      std::memcpy(chunk.data() + (position - begin) * kUnitBytes, view_.values + at_ * kUnitBytes,
                  kUnitBytes);
    }
  }

  // Moves to the next view that is not empty, through all pieces.
  Status refill() {
    at_ = 0;
    view_ = {};
    while (true) {
      if (!cursor_) {
        if (piece_ == pieces_.size()) return {};
        cursor_.emplace(*layout_, pieces_[piece_].bucket, pieces_[piece_].entry);
        ++piece_;
      }
      DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView next, cursor_->next());
      if (next.count() == 0) {
        cursor_.reset();
        continue;
      }
      const std::uint64_t first = next.origin + next.offsets.front();
      if (first < next_position_) {
        return error(StatusCode::kCorrupt, "piece ", piece_ - 1, " begins at position ", first,
                     ", an earlier one goes to ", next_position_);
      }
      next_position_ = next.origin + next.offsets.back() + 1;
      view_ = next;
      return {};
    }
  }

  const WeightLayout* layout_;
  ChunkOrder order_;
  std::vector<BucketPiece> pieces_;
  std::size_t piece_ = 0;              // the next to be opened
  std::optional<EntryCursor> cursor_;  // of the open one
  DeltaView view_;                     // of the cursor
  std::size_t at_ = 0;                 // in view_: the next to be written
  std::uint64_t next_position_ = 0;    // the least that may come next
};

}  // namespace

Result<std::unique_ptr<TensorPatcher>> make_bucket_patcher(const WeightLayout& layout,
                                                           std::uint32_t tensor,
                                                           std::vector<BucketPiece> pieces) {
  if (tensor >= layout.size()) {
    return error(StatusCode::kInvalidArgument, "tensor ", tensor, " of a layout of ",
                 layout.size());
  }
  for (const BucketPiece& piece : pieces) {
    DRIFTLESS_RETURN_IF_ERROR(check_entry(layout, piece.bucket, piece.entry));
    if (piece.entry.tensor != tensor) {
      return error(StatusCode::kInvalidArgument, "a piece of tensor '",
                   layout[piece.entry.tensor].name, "' for tensor '", layout[tensor].name, "'");
    }
  }
  return std::unique_ptr<TensorPatcher>(
      std::make_unique<BucketPatcher>(layout, tensor, std::move(pieces)));
}

}  // namespace driftless
