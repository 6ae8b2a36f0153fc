// SPDX-License-Identifier: Apache-2.0
// Device memory for tests: each piece ends where a guard begins, so that writing too far shows.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/operations.h"

namespace driftless::testing {

[[nodiscard]] inline bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

inline void must(cudaError_t code) { ASSERT_EQ(code, cudaSuccess) << cudaGetErrorString(code); }

// `shift` bytes past an address divisible by 256.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::uint64_t size, std::uint64_t shift = 0) : size_(size), shift_(shift) {
    must(cudaMalloc(&memory_, size + shift + kGuard));
    must(cudaMemset(memory_, kFill, size + shift + kGuard));
    must(cudaDeviceSynchronize());
  }
  explicit DeviceBytes(std::span<const std::byte> content, std::uint64_t shift = 0)
      : DeviceBytes(content.size(), shift) {
    must(cudaMemcpy(data(), content.data(), content.size(), cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());  // it may return before the bytes are there for other streams
  }
  DeviceBytes(DeviceBytes&& other) noexcept
      : size_(other.size_), shift_(other.shift_), memory_(std::exchange(other.memory_, nullptr)) {}
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes() { cudaFree(memory_); }

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_) + shift_; }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::vector<std::byte> copy(std::uint64_t bytes) const {
    std::vector<std::byte> out(bytes);
    must(cudaMemcpy(out.data(), data(), bytes, cudaMemcpyDeviceToHost));
    return out;
  }
  [[nodiscard]] std::vector<std::byte> copy() const { return copy(size_); }
  // Nothing was written before or past the bytes.
  [[nodiscard]] bool intact() const {
    std::vector<unsigned char> all(size_ + shift_ + kGuard);
    must(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if ((i < shift_ || i >= shift_ + size_) && all[i] != kFill) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kGuard = 512;
  static constexpr int kFill = 0xa5;
  std::uint64_t size_;
  std::uint64_t shift_;
  void* memory_ = nullptr;
};

class WorkMemory {
 public:
  explicit WorkMemory(const cuda::WorkspaceSize& size) : size_(size), dev_(size.dev_bytes) {
    must(cudaMallocHost(&host_, size.host_bytes + 64));
  }
  WorkMemory(const WorkMemory&) = delete;
  WorkMemory& operator=(const WorkMemory&) = delete;
  ~WorkMemory() { cudaFreeHost(host_); }
  [[nodiscard]] cuda::Workspace get() const {
    return {dev_.data(), size_.dev_bytes, static_cast<std::byte*>(host_), size_.host_bytes};
  }
  [[nodiscard]] bool intact() const { return dev_.intact(); }

 private:
  cuda::WorkspaceSize size_;
  DeviceBytes dev_;
  void* host_ = nullptr;
};

inline void must(const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); }

}  // namespace driftless::testing
