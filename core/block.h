// SPDX-License-Identifier: Apache-2.0
// Blocks: parts of tensors, cut along any of their dimensions. What a rank publishes, and what an
// entry of a frame is of.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/layout.h"

namespace driftless {

// Elements [offsets[d], offsets[d] + sizes[d]) of each dimension d. Both empty: the whole tensor.
struct TensorBox {
  std::vector<std::uint64_t> offsets, sizes;

  [[nodiscard]] bool whole() const { return sizes.empty(); }
  [[nodiscard]] std::string to_string() const;  // "[0:4, 16:32]", "all"
  friend auto operator<=>(const TensorBox&, const TensorBox&) = default;
};

// Where the units of a block lie in its tensor. Units are numbered inside the block in row-major
// order; their order is the same in the tensor. A plain value; device code reads it as it is.
struct BlockPlace {
  static constexpr std::uint32_t kMaxDims = 6;  // after joining

  struct Dim {
    std::uint64_t size = 1;
    std::uint64_t stride = 1;  // units of the tensor
  };
  std::uint64_t units = 0;  // of the block
  std::uint64_t first = 0;  // unit of the tensor that is the block's first
  std::uint64_t run = 1;    // units that adjoin in the block and in the tensor
  std::uint32_t dims = 0;
  Dim dim[kMaxDims];  // of the runs, descending strides

  [[nodiscard]] static constexpr BlockPlace all(std::uint64_t units) {
    BlockPlace place;
    place.units = units;
    place.run = units > 0 ? units : 1;
    return place;
  }

  // Whether its units adjoin in the tensor.
  [[nodiscard]] constexpr bool contiguous() const { return dims == 0; }
  // The tensor's unit with which run number `number` begins.
  [[nodiscard]] constexpr std::uint64_t run_begin(std::uint64_t number) const {
    std::uint64_t at = first;
    for (std::uint32_t d = dims; d-- > 0;) {
      at += number % dim[d].size * dim[d].stride;
      number /= dim[d].size;
    }
    return at;
  }
  // The tensor's unit that is the block's unit `unit`.
  [[nodiscard]] constexpr std::uint64_t at(std::uint64_t unit) const {
    return dims == 0 ? first + unit : run_begin(unit / run) + unit % run;
  }
};

// A box of a certain tensor, found good.
struct TensorBlock {
  std::uint32_t tensor = 0;  // index in the layout
  TensorBox box;             // not whole
  BlockPlace place;

  // kCorrupt, naming the tensor and the dimension, if the box is not inside the tensor, is empty,
  // or cuts a byte of packed elements; kUnsupported if it is cut along more dimensions than
  // BlockPlace has. A box that is whole, or that has all of the tensor, is refused, too: it is no
  // block.
  [[nodiscard]] static Result<TensorBlock> make(std::uint32_t tensor, const TensorSpec& spec,
                                                TensorBox box);
};

// Where the units of a box lie that may be whole.
[[nodiscard]] Result<BlockPlace> place_of(const TensorSpec& tensor, const TensorBox& box);

// Whether two boxes of one tensor have an element in common.
[[nodiscard]] bool overlap(const TensorBox& a, const TensorBox& b);

// Ok if the boxes have every element of the tensor once. kInvalidArgument, naming the first
// elements that are there twice, or in none. O(boxes^2).
[[nodiscard]] Status check_covers(const TensorSpec& tensor, std::span<const TensorBox> boxes);

}  // namespace driftless
