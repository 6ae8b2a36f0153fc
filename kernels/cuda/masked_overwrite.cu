// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kGroups = 4;  // of 16 bytes, in flight per thread

__device__ __forceinline__ void add_up(std::uint64_t written, std::uint64_t* total) {
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2) {
    written += __shfl_xor_sync(~0U, written, step);
  }
  if (threadIdx.x % 32 == 0 && written != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(total), written);
  }
}

// Copies 16 bytes, except units equal to the sentinel.
template <unsigned W>
__device__ __forceinline__ unsigned overwrite_group(uint4* target, const uint4& source,
                                                    Unit<W> sentinel) {
  constexpr unsigned kUnits = 16 / W;
  union {
    uint4 all;
    Unit<W> units[kUnits];
  } group{source};
  unsigned mask = 0;
#pragma unroll
  for (unsigned i = 0; i < kUnits; ++i) {
    if (group.units[i] != sentinel) mask |= 1U << i;
  }
  if (mask == (1U << kUnits) - 1) {
    *target = source;
  } else if (mask != 0) {
    auto* const units = reinterpret_cast<Unit<W>*>(target);
#pragma unroll
    for (unsigned i = 0; i < kUnits; ++i) {
      if ((mask >> i & 1U) != 0) units[i] = group.units[i];
    }
  }
  return __popc(mask);
}

template <unsigned W>
__global__ void __launch_bounds__(kThreads)
    overwrite_aligned(uint4* target, const uint4* source, std::uint64_t groups, Unit<W> sentinel,
                      std::uint64_t* written) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads * kGroups;
  std::uint64_t count = 0;
  for (std::uint64_t first = std::uint64_t{blockIdx.x} * kThreads * kGroups + threadIdx.x;
       first < groups; first += stride) {
    uint4 loaded[kGroups];
#pragma unroll
    for (unsigned j = 0; j < kGroups; ++j) {
      const std::uint64_t at = first + j * kThreads;
      if (at < groups) loaded[j] = __ldcs(source + at);
    }
#pragma unroll
    for (unsigned j = 0; j < kGroups; ++j) {
      const std::uint64_t at = first + j * kThreads;
      if (at < groups) count += overwrite_group<W>(target + at, loaded[j], sentinel);
    }
  }
  __syncwarp();
  add_up(count, written);
}

template <unsigned W>
__global__ void __launch_bounds__(kThreads)
    overwrite_units(Unit<W>* target, const Unit<W>* source, std::uint64_t units, Unit<W> sentinel,
                    std::uint64_t* written) {
  std::uint64_t count = 0;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < units;
       i += std::uint64_t{gridDim.x} * kThreads) {
    const Unit<W> unit = source[i];
    if (unit == sentinel) continue;
    target[i] = unit;
    ++count;
  }
  __syncwarp();
  add_up(count, written);
}

template <unsigned W>
__global__ void __launch_bounds__(kThreads)
    fill(Unit<W>* data, std::uint64_t units, Unit<W> pattern, std::uint64_t head,
         std::uint64_t groups) {
  constexpr unsigned kUnits = 16 / W;
  union {
    uint4 all;
    Unit<W> units[kUnits];
  } group;
#pragma unroll
  for (unsigned i = 0; i < kUnits; ++i) group.units[i] = pattern;
  const std::uint64_t first = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::uint64_t stride = std::uint64_t{gridDim.x} * kThreads;
  auto* const aligned = reinterpret_cast<uint4*>(data + head);
  for (std::uint64_t i = first; i < groups; i += stride) aligned[i] = group.all;
  const std::uint64_t tail = head + groups * kUnits;
  for (std::uint64_t i = first; i < head; i += stride) data[i] = pattern;
  for (std::uint64_t i = tail + first; i < units; i += stride) data[i] = pattern;
}

unsigned blocks_for(std::uint64_t work) {
  constexpr std::uint64_t kMaxBlocks = 4096;
  return static_cast<unsigned>(std::clamp<std::uint64_t>(work / kThreads + 1, 1, kMaxBlocks));
}

template <unsigned W>
void launch(std::byte* target, const std::byte* source, std::uint64_t units, std::uint64_t sentinel,
            std::uint64_t* written, cudaStream_t stream) {
  const auto small = static_cast<Unit<W>>(sentinel);
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(target) | reinterpret_cast<std::uintptr_t>(source)) % 16 ==
      0;
  const std::uint64_t groups = aligned ? units * W / 16 : 0;
  if (groups != 0) {
    overwrite_aligned<W><<<blocks_for(groups / kGroups), kThreads, 0, stream>>>(
        reinterpret_cast<uint4*>(target), reinterpret_cast<const uint4*>(source), groups, small,
        written);
  }
  const std::uint64_t done = groups * (16 / W);
  if (done == units) return;
  overwrite_units<W><<<blocks_for(units - done), kThreads, 0, stream>>>(
      reinterpret_cast<Unit<W>*>(target) + done, reinterpret_cast<const Unit<W>*>(source) + done,
      units - done, small, written);
}

template <unsigned W>
void launch_fill(std::byte* data, std::uint64_t units, std::uint64_t pattern, cudaStream_t stream) {
  const std::uint64_t past = reinterpret_cast<std::uintptr_t>(data) % 16;
  const std::uint64_t head = std::min<std::uint64_t>(units, past == 0 ? 0 : (16 - past) / W);
  const std::uint64_t groups = (units - head) * W / 16;
  fill<W><<<blocks_for(groups + head), kThreads, 0, stream>>>(
      reinterpret_cast<Unit<W>*>(data), units, static_cast<Unit<W>>(pattern), head, groups);
}

}  // namespace

Status fill_units(std::byte* data_dev, std::uint64_t units, unsigned unit_bytes,
                  std::uint64_t pattern, Stream stream) {
  if (units == 0) return {};
  if (!valid_width(unit_bytes)) {
    return error(StatusCode::kInvalidArgument, "units of ", unit_bytes, " bytes cannot be filled");
  }
  by_width(unit_bytes, launch_fill<1>, launch_fill<2>, launch_fill<4>, launch_fill<8>)(
      data_dev, units, pattern, native(stream));
  return check_launch("fill_units");
}

Status masked_overwrite(std::byte* target_dev, const std::byte* source_dev, std::uint64_t units,
                        unsigned unit_bytes, std::uint64_t sentinel, std::uint64_t* written_dev,
                        Stream stream) {
  if (!valid_width(unit_bytes)) {
    return error(StatusCode::kInvalidArgument, "units of ", unit_bytes,
                 " bytes cannot be overwritten");
  }
  by_width(unit_bytes, launch<1>, launch<2>, launch<4>, launch<8>)(
      target_dev, source_dev, units, sentinel, written_dev, native(stream));
  return check_launch("masked_overwrite");
}

}  // namespace driftless::cuda
