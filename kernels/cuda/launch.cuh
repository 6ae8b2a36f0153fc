// SPDX-License-Identifier: Apache-2.0
// Common helpers of this folder: CUDA errors as statuses, division of workspaces.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>

#include "core/status.h"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

inline Status check(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return {};
  cudaGetLastError();  // otherwise the next launch would report it again
  const bool full = code == cudaErrorMemoryAllocation;
  return error(full ? StatusCode::kNoSpace : StatusCode::kIo, what, ": ", cudaGetErrorString(code),
               " (", cudaGetErrorName(code), ")");
}
// Call it after a kernel was queued.
inline Status check_launch(const char* kernel) { return check(cudaGetLastError(), kernel); }

inline cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

constexpr std::uint64_t kCarveBytes = 256;

// Divides memory into pieces at multiples of 256 bytes. With a null begin it only counts.
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

// Items of work and, for each span (the work of a warp at a time), the number of its item.
template <typename Item>
struct SpanTable {
  Item* items = nullptr;
  std::uint32_t* span_item = nullptr;
};
template <typename Item>
SpanTable<Item> carve_spans(std::byte* memory, std::uint64_t items, std::uint64_t spans,
                            std::uint64_t* used = nullptr) {
  Carver carver(memory);
  SpanTable<Item> table;
  table.items = carver.take<Item>(items);
  table.span_item = carver.take<std::uint32_t>(spans);
  if (used != nullptr) *used = carver.used();
  return table;
}
template <typename Item>
WorkspaceSize span_table_size(std::uint64_t items, std::uint64_t spans) {
  WorkspaceSize size;
  carve_spans<Item>(nullptr, items, spans, &size.dev_bytes);
  size.host_bytes = size.dev_bytes;
  return size;
}
// Fills the table in the workspace's host memory, and queues the copy to the device. `make`
// converts a source and the number of its first span into an item and the number of its spans.
template <typename Item, typename Source, typename Make>
Status place_spans(std::span<const Source> sources, std::uint64_t spans, const Workspace& workspace,
                   const char* what, Stream stream, const Make& make) {
  const WorkspaceSize size = span_table_size<Item>(sources.size(), spans);
  DRIFTLESS_RETURN_IF_ERROR(check_workspace(workspace, size, what));
  const SpanTable<Item> host = carve_spans<Item>(workspace.host, sources.size(), spans);
  std::uint32_t span = 0;
  for (std::uint32_t i = 0; i < sources.size(); ++i) {
    std::uint64_t item_spans = 0;
    std::tie(host.items[i], item_spans) = make(sources[i], span);
    std::fill_n(host.span_item + span, item_spans, i);
    span += static_cast<std::uint32_t>(item_spans);
  }
  return check(cudaMemcpyAsync(workspace.dev, workspace.host, size.dev_bytes,
                               cudaMemcpyHostToDevice, native(stream)),
               what);
}

inline bool valid_width(unsigned unit_bytes) {
  return unit_bytes == 1 || unit_bytes == 2 || unit_bytes == 4 || unit_bytes == 8;
}

template <unsigned Bytes>
using Unit = std::conditional_t<
    Bytes == 1, std::uint8_t,
    std::conditional_t<Bytes == 2, std::uint16_t,
                       std::conditional_t<Bytes == 4, std::uint32_t, std::uint64_t>>>;

// Selects the function for units of this width, from those for 1, 2, 4 and 8 bytes.
template <typename Function>
Function* by_width(unsigned unit_bytes, Function* one, Function* two, Function* four,
                   Function* eight) {
  return unit_bytes == 1 ? one : unit_bytes == 2 ? two : unit_bytes == 4 ? four : eight;
}

}  // namespace driftless::cuda
