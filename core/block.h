// SPDX-License-Identifier: Apache-2.0
// Blocks: rectangular parts of tensors, cut along any of their dimensions. A rank publishes blocks,
// and each entry of a frame describes one.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/block_place.h"
#include "core/layout.h"

namespace driftless {

// Elements [offsets[d], offsets[d] + sizes[d]) of each dimension d. Both empty: the whole tensor.
struct TensorBox {
  std::vector<std::uint64_t> offsets, sizes;

  [[nodiscard]] bool whole() const { return sizes.empty(); }
  [[nodiscard]] std::string to_string() const;  // "[0:4, 16:32]", "all"
  friend auto operator<=>(const TensorBox&, const TensorBox&) = default;
};

// A box that was checked against its tensor.
struct TensorBlock {
  std::uint32_t tensor = 0;  // index in the layout
  TensorBox box;             // not whole
  BlockPlace place;

  // kCorrupt, naming the tensor and the dimension, if the box is not inside the tensor, is empty,
  // or cuts a byte of packed elements; kUnsupported if it is cut along more dimensions than
  // BlockPlace has. A box that covers the whole tensor is kCorrupt, too: it needs no block.
  [[nodiscard]] static Result<TensorBlock> make(std::uint32_t tensor, const TensorSpec& spec,
                                                TensorBox box);
};

// Where the units of the box lie in the tensor. The box may be whole.
[[nodiscard]] Result<BlockPlace> place_of(const TensorSpec& tensor, const TensorBox& box);

// Whether two boxes of one tensor have an element in common.
[[nodiscard]] bool overlap(const TensorBox& a, const TensorBox& b);

// Ok if every element of the tensor lies in exactly one box. kInvalidArgument, naming an element
// that lies in two boxes, or the first one that lies in none. O(boxes^2).
[[nodiscard]] Status check_covers(const TensorSpec& tensor, std::span<const TensorBox> boxes);

}  // namespace driftless
