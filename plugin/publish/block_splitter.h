// SPDX-License-Identifier: Apache-2.0
// The part of a tensor that a publisher rank owns, and the blocks that it is cut into before it is
// sent, so that receivers can fetch their slices alone.
#pragma once

#include <deque>
#include <functional>

#include "core/block.h"
#include "core/delta_view.h"

namespace driftless {

// Cuts a tensor along one dimension into `parts` of equal size (the last ones may be smaller).
struct TensorCut {
  std::string tensor;
  std::uint32_t dim = 0;
  std::uint32_t parts = 1;

  friend bool operator==(const TensorCut&, const TensorCut&) = default;
};

// A cut of one tensor of the layout at these places, ascending.
struct BlockCut {
  std::uint32_t tensor = 0;  // index in the layout
  std::uint32_t dim = 0;
  std::vector<std::uint64_t> points;

  friend bool operator==(const BlockCut&, const BlockCut&) = default;
};

// A tensor, or the block of it that this rank owns, and how it is cut further.
class OwnedTensor {
 public:
  // `cut` may be null. kInvalidArgument, naming the tensor, if the cut does not fit it or makes
  // more than kMaxBlocksOfTensor parts.
  [[nodiscard]] static Result<OwnedTensor> make(std::uint32_t tensor, const TensorSpec& spec,
                                                const TensorBox& box, const BlockCut* cut);

  [[nodiscard]] std::uint32_t tensor() const { return tensor_; }
  // The owned block of the tensor. Null: the rank owns the whole tensor.
  [[nodiscard]] const TensorBlock* block() const { return block_.get(); }
  [[nodiscard]] const BlockPlace& place() const { return place_; }
  // The blocks that are sent. Empty: the owned part is sent uncut.
  struct Part {
    TensorBlock block;  // in the tensor
    BlockPlace inside;  // in the owned part
  };
  [[nodiscard]] std::span<const Part> parts() const { return parts_; }

 private:
  friend class BlockSplitter;
  std::uint32_t tensor_ = 0;
  std::shared_ptr<const TensorBlock> block_;
  BlockPlace place_;
  std::vector<Part> parts_;
  // The owned part is rows of `length_` units. Part i has the units [begins_[i], begins_[i + 1]) of
  // each row.
  std::uint64_t length_ = 1;
  std::vector<std::uint64_t> begins_;
};

// Collects the changes of one tensor, block by block. Memory: O(changes).
class BlockSplitter {
 public:
  // Deltas ascend in the owned part, and belong to one tensor until take().
  void add(const OwnedTensor& owned, const DeltaView& delta);
  [[nodiscard]] const OwnedTensor* owned() const { return owned_; }
  // Passes the changes of each part, part after part, with positions in the part; then forgets
  // them.
  [[nodiscard]] Status take(
      const std::function<Status(const DeltaView& delta, const TensorBlock* block)>& use);

 private:
  struct Piece {
    std::uint64_t origin = 0;
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> values;
  };
  const OwnedTensor* owned_ = nullptr;
  unsigned unit_bytes_ = 1;
  std::vector<std::deque<Piece>> pieces_;  // per part
};

}  // namespace driftless
