// SPDX-License-Identifier: Apache-2.0
// BlockPlace: where a block of a tensor lies in it. For host and device code.
#pragma once

#include <cstdint>

namespace driftless {

// Maps the units of a block to their places in its tensor. Units are numbered inside the block in
// row-major order, and have the same order in the tensor. A run is a sequence of units that adjoin
// in both. A plain value; device code reads it as it is.
struct BlockPlace {
  static constexpr std::uint32_t kMaxDims = 6;  // after adjoining dimensions were joined

  struct Dim {
    std::uint64_t size = 1;
    std::uint64_t stride = 1;  // units of the tensor
  };
  std::uint64_t units = 0;  // of the block
  std::uint64_t first = 0;  // the tensor's unit at which the block begins
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
  // The first unit, counted in the tensor, of run `number`.
  [[nodiscard]] constexpr std::uint64_t run_begin(std::uint64_t number) const {
    std::uint64_t at = first;
    for (std::uint32_t d = dims; d-- > 0;) {
      at += number % dim[d].size * dim[d].stride;
      number /= dim[d].size;
    }
    return at;
  }
  // The position in the tensor of the block's unit `unit`.
  [[nodiscard]] constexpr std::uint64_t at(std::uint64_t unit) const {
    return dims == 0 ? first + unit : run_begin(unit / run) + unit % run;
  }
};

}  // namespace driftless
