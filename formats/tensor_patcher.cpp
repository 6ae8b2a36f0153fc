// SPDX-License-Identifier: Apache-2.0
// Common code of all patchers, and the one that patches a tensor from its entries in buckets.
#include "formats/tensor_patcher.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace driftless {
namespace {

// Applies the pieces of one block of a tensor, one after the other.
class BlockPatcher {
 public:
  explicit BlockPatcher(const WeightLayout& layout) : layout_(&layout) {}

  void add(BucketPiece piece) { pieces_.push_back(piece); }
  [[nodiscard]] bool takes(const BucketPiece& piece) const {
    const TensorBlock* const block = pieces_.front().entry.block;
    const TensorBlock* const other = piece.entry.block;
    return block == other || (block != nullptr && other != nullptr && block->box == other->box);
  }

  Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) {
    while (true) {
      if (at_ == view_.count()) {
        DRIFTLESS_RETURN_IF_ERROR(refill());
        if (view_.count() == 0) return {};
      }
      switch (view_.unit_bytes) {
        case 1: overwrite<1>(byte_offset, chunk); break;
        case 2: overwrite<2>(byte_offset, chunk); break;
        case 4: overwrite<4>(byte_offset, chunk); break;
        default: overwrite<8>(byte_offset, chunk); break;
      }
      if (at_ < view_.count()) return {};  // the rest lies after this chunk
    }
  }

  Status end() {
    if (at_ == view_.count()) DRIFTLESS_RETURN_IF_ERROR(refill());
    if (view_.count() == 0) return {};
    return error(StatusCode::kInternal, "changes are left over");
  }

 private:
  template <unsigned kUnitBytes>
  void overwrite(std::uint64_t byte_offset, std::span<std::byte> chunk) {
    // All positions of a view lie within the tensor, so nothing here overflows.
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
  std::vector<BucketPiece> pieces_;
  std::size_t piece_ = 0;              // the next to open
  std::optional<EntryCursor> cursor_;  // of the open piece
  DeltaView view_;                     // of the cursor
  std::size_t at_ = 0;                 // index in view_ of the next to write
  std::uint64_t next_position_ = 0;    // least allowed next position
};

// The blocks of a tensor interleave, so each goes through the chunks separately.
class BucketPatcher final : public TensorPatcher {
 public:
  BucketPatcher(const WeightLayout& layout, std::uint32_t tensor,
                const std::vector<BucketPiece>& pieces)
      : TensorPatcher(layout[tensor]) {
    for (const BucketPiece& piece : pieces) {
      auto block = std::find_if(blocks_.begin(), blocks_.end(),
                                [&](const BlockPatcher& each) { return each.takes(piece); });
      if (block == blocks_.end()) block = blocks_.insert(block, BlockPatcher(layout));
      block->add(piece);
    }
  }

 private:
  Status apply(std::uint64_t byte_offset, std::span<std::byte> chunk) override {
    for (BlockPatcher& block : blocks_) {
      DRIFTLESS_RETURN_IF_ERROR(block.apply(byte_offset, chunk));
    }
    return {};
  }
  Status end() override {
    for (BlockPatcher& block : blocks_) DRIFTLESS_RETURN_IF_ERROR(block.end());
    return {};
  }

  std::vector<BlockPatcher> blocks_;
};

}  // namespace

Status TensorPatcher::kept(const Status& status) {
  if (!status.ok()) failure_ = status.with_context(concat("tensor '", name_, "'"));
  return failure_;
}

Status TensorPatcher::patch(std::uint64_t byte_offset, std::span<std::byte> chunk) {
  DRIFTLESS_RETURN_IF_ERROR(failure_);
  if (byte_offset != next_ || chunk.size() > size_bytes_ - next_) {
    return error(StatusCode::kInternal, "tensor '", name_, "': a chunk of ", chunk.size(),
                 " bytes at ", byte_offset, ", expected one at ", next_, " of ", size_bytes_);
  }
  if (chunk.size() % 8 != 0 && byte_offset + chunk.size() != size_bytes_) {
    return error(StatusCode::kInternal, "tensor '", name_, "': a chunk of ", chunk.size(),
                 " bytes before the last one is not a multiple of 8");
  }
  next_ += chunk.size();
  return kept(apply(byte_offset, chunk));
}

Status TensorPatcher::finish() {
  DRIFTLESS_RETURN_IF_ERROR(failure_);
  if (next_ == size_bytes_) return kept(end());
  return error(StatusCode::kInternal, "tensor '", name_, "': only ", next_, " of ", size_bytes_,
               " bytes were patched");
}

Result<std::unique_ptr<TensorPatcher>> make_bucket_patcher(const WeightLayout& layout,
                                                           std::uint32_t tensor,
                                                           const std::vector<BucketPiece>& pieces) {
  if (tensor >= layout.size()) {
    return error(StatusCode::kInvalidArgument, "tensor number ", tensor, " is not below ",
                 layout.size());
  }
  for (const BucketPiece& piece : pieces) {
    DRIFTLESS_RETURN_IF_ERROR(check_entry(layout, piece.bucket, piece.entry));
    if (piece.entry.tensor != tensor) {
      return error(StatusCode::kInvalidArgument, "a piece of tensor '",
                   layout[piece.entry.tensor].name, "' for tensor '", layout[tensor].name, "'");
    }
  }
  return std::unique_ptr<TensorPatcher>(std::make_unique<BucketPatcher>(layout, tensor, pieces));
}

}  // namespace driftless
