// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that grows in its place, and is never given back before its end: cudaFree() waits
// for all that is queued on the GPU.
// Part of driftless_device; includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/status.h"

namespace driftless {

// One thread at a time. Works on the device that was current when it was made.
class GrowingMemory {
 public:
  // Addresses for all the memory that the device has, and no memory yet. Null where the driver or
  // the device cannot do that (memory is taken by cudaMalloc() then).
  [[nodiscard]] static std::unique_ptr<GrowingMemory> make();
  // Waits for the device first, as cudaFree() does.
  ~GrowingMemory();
  GrowingMemory(const GrowingMemory&) = delete;
  GrowingMemory& operator=(const GrowingMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  // To at least so many bytes. Waits for nothing that the device does; what is there stays as it
  // is, and work may be under way on it. kNoSpace where memory is lacking.
  [[nodiscard]] Status grow(std::uint64_t bytes);

 private:
  GrowingMemory() = default;

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0, most_ = 0;
  std::uint64_t granule_ = 0;  // memory is taken in multiples of it
  int device_ = 0;             // the driver's number
};

}  // namespace driftless
