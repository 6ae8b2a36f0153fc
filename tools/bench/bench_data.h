// SPDX-License-Identifier: Apache-2.0
// The two arrays that everything is measured on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "kernels/tensor_ops.h"

namespace driftless::bench {

inline constexpr std::size_t kTensors = 24;
inline constexpr double kDensity = 0.01;

// Anonymous memory in large pages where the system has them, as numpy asks for, too.
class Memory {
 public:
  [[nodiscard]] static Result<Memory> allocate(std::uint64_t size);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  Memory(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

// kTensors tensors of bf16 of equal size, one after the other on either side.
struct BenchData {
  WeightLayout layout;
  Memory old_side, new_side;
  std::vector<TensorPair> pairs;
};

// Numbers like those of a trained model; a changed one moves by one step of its last place. The
// same bytes on every machine and for any number of threads.
[[nodiscard]] Result<BenchData> make_bench_data(std::uint64_t side_bytes, unsigned threads);

}  // namespace driftless::bench
