// SPDX-License-Identifier: Apache-2.0
// What every file of this folder needs: errors as statuses, carving of workspaces.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <type_traits>

#include "core/status.h"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

inline Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  cudaGetLastError();  // else the next launch would report it again
  const bool full = code == cudaErrorMemoryAllocation;
  return error(full ? StatusCode::kNoSpace : StatusCode::kIo, what, ": ", cudaGetErrorString(code),
               " (", cudaGetErrorName(code), ")");
}
// After a kernel was queued.
inline Status check_launch(const char* kernel) { return check(cudaGetLastError(), kernel); }

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

constexpr std::uint64_t kCarveBytes = 256;

// Takes pieces off a stretch of memory, each at a multiple of 256 bytes. With a null begin it only
// counts.
class Carver {
 public:
  explicit Carver(std::byte* begin) : begin_(begin) {}
  template <typename T>
  T* take(std::uint64_t count) {
    T* const piece = begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + used_);
    used_ += (count * sizeof(T) + kCarveBytes - 1) / kCarveBytes * kCarveBytes;
    return piece;
  }
  std::uint64_t used() const { return used_; }

 private:
  std::byte* begin_;
  std::uint64_t used_ = 0;
};

inline Status check_workspace(const Workspace& given, const WorkspaceSize& needed,
                              const char* what) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(given.dev) % 256 == 0 &&
                       reinterpret_cast<std::uintptr_t>(given.host) % 64 == 0;
  if (given.dev_bytes >= needed.dev_bytes && given.host_bytes >= needed.host_bytes && aligned &&
      given.dev != nullptr && given.host != nullptr) {
    return {};
  }
  return error(StatusCode::kInvalidArgument, what, ": the workspace has ", given.dev_bytes,
               " bytes of device and ", given.host_bytes, " of pinned memory, ", needed.dev_bytes,
               " and ", needed.host_bytes, " are needed, aligned to 256 and 64");
}

inline bool valid_width(unsigned unit_bytes) {
  return unit_bytes == 1 || unit_bytes == 2 || unit_bytes == 4 || unit_bytes == 8;
}

template <unsigned Bytes>
using Unit = std::conditional_t<
    Bytes == 1, std::uint8_t,
    std::conditional_t<Bytes == 2, std::uint16_t,
                       std::conditional_t<Bytes == 4, std::uint32_t, std::uint64_t>>>;

// Which of the functions, for units of 1, 2, 4 and 8 bytes, is for these.
template <typename Function>
Function* by_width(unsigned unit_bytes, Function* one, Function* two, Function* four,
                   Function* eight) {
  return unit_bytes == 1 ? one : unit_bytes == 2 ? two : unit_bytes == 4 ? four : eight;
}

}  // namespace driftless::cuda
