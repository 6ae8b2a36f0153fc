// SPDX-License-Identifier: Apache-2.0
// The two arrays that everything is measured on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "kernels/tensor_ops.h"

namespace driftless::bench {

inline constexpr std::size_t kTensors = 24;
inline constexpr double kDensity = 0.01;

// kTensors tensors of bf16 of equal size, one after the other on either side.
struct BenchData {
  WeightLayout layout;
  std::uint64_t side_bytes = 0;
  std::shared_ptr<std::byte> old_side, new_side;  // in large pages, as numpy asks for, too
  std::vector<TensorPair> pairs;

  [[nodiscard]] std::span<const std::byte> old_bytes() const {
    return {old_side.get(), side_bytes};
  }
  [[nodiscard]] std::span<const std::byte> new_bytes() const {
    return {new_side.get(), side_bytes};
  }
};

// Numbers like those of a trained model; a changed one moves by one step of its last place. The
// same bytes on every machine and for any number of threads.
[[nodiscard]] Result<BenchData> make_bench_data(std::uint64_t side_bytes, unsigned threads);

}  // namespace driftless::bench
