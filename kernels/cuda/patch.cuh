// SPDX-License-Identifier: Apache-2.0
// Device structures for a Patch. A warp works on a chunk: up to 1024 changes of one tensor.
#pragma once

#include "core/memory_kind.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

inline constexpr std::uint32_t kChunk = 1024;  // changes
inline constexpr unsigned kPatchWarps = 8;     // per block
// Sums of gaps are limited to this, so that they never wrap. No tensor is that large.
inline constexpr std::uint64_t kMaxSum = std::uint64_t{1} << 62;

struct PatchTensor : Patch::Tensor {
  std::uint32_t first_chunk;
};

struct PatchParts {
  PatchTensor* tensors = nullptr;
  std::uint32_t* chunk_tensor = nullptr;
  std::uint64_t* before = nullptr;  // per chunk: sum of gap + 1 over all chunks before it
  std::uint32_t* bad = nullptr;     // the first tensor with invalid positions
  std::byte* scan = nullptr;
};
// Divides the device's workspace, or the host's, which has no `before` and no `scan`.
[[nodiscard]] PatchParts carve_patch(std::byte* memory, std::uint32_t tensors, std::uint32_t chunks,
                                     MemoryKind kind = MemoryKind::kDevice,
                                     std::uint64_t* used = nullptr);

__device__ __forceinline__ std::uint64_t load_position(const std::byte* at, unsigned bytes) {
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(at);
  if (bytes == 2) return *halves;
  if (reinterpret_cast<std::uintptr_t>(at) % 4 == 0) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(at);
    return bytes == 4 ? words[0] : words[0] | (std::uint64_t{words[1]} << 32);
  }
  std::uint64_t value = 0;
  for (unsigned i = 0; i < bytes / 2; ++i) value |= std::uint64_t{halves[i]} << (16 * i);
  return value;
}

// The sum of `value` over this lane and the lanes before it.
template <typename T>
__device__ __forceinline__ T running_sum(T value, unsigned lane) {
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const T left = __shfl_up_sync(~0U, value, step);
    if (lane >= step) value += left;
  }
  return value;
}

// A chunk, with the places of its positions and values.
struct Chunk {
  const PatchTensor* tensor;
  const std::byte* positions;
  std::uint64_t value_begin;
  std::uint32_t count;
  std::uint64_t start;  // start of its gaps: one past the position before it
};

__device__ __forceinline__ Chunk open_chunk(const PatchParts& parts, const std::byte* positions,
                                            std::uint32_t chunk, bool gaps) {
  const PatchTensor* const tensor = parts.tensors + parts.chunk_tensor[chunk];
  const std::uint64_t skip = std::uint64_t{chunk - tensor->first_chunk} * kChunk;
  const std::uint64_t left = tensor->entry.count - skip;
  Chunk out;
  out.tensor = tensor;
  out.positions = positions + tensor->entry.position_begin + skip * tensor->entry.position_bytes;
  out.value_begin = tensor->entry.value_begin + skip;
  out.count = left < kChunk ? static_cast<std::uint32_t>(left) : kChunk;
  out.start = gaps ? parts.before[chunk] - parts.before[tensor->first_chunk] : 0;
  return out;
}

// The changes that a lane processes together, so that all its loads are in flight before its
// stores.
inline constexpr unsigned kTogether = 4;
struct Changes {
  std::uint64_t value[kTogether];  // index in the values' stream
  std::uint64_t at[kTogether];     // position in the tensor
  bool valid[kTogether];           // false: no change, or it lies past the block's end
};

// Calls body(changes) until it has processed every change of the chunk. All lanes of the warp must
// take part.
template <bool Gaps, bool Cut = true, typename Body>
__device__ __forceinline__ void each_change(const Chunk& chunk, unsigned lane, const Body& body) {
  const unsigned bytes = chunk.tensor->entry.position_bytes;
  const std::uint64_t units = chunk.tensor->units;
  const BlockPlace& place = chunk.tensor->place;
  const std::uint64_t shift = place.first;
  const bool cut = Cut && place.dims != 0;
  const bool words = bytes == 4 && reinterpret_cast<std::uintptr_t>(chunk.positions) % 4 == 0;
  std::uint64_t start = chunk.start;
  for (std::uint32_t first = 0; first < chunk.count; first += 32 * kTogether) {
    std::uint64_t position[kTogether];
    Changes changes;
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      const std::uint32_t k = first + j * 32 + lane;
      changes.valid[j] = k < chunk.count;
      changes.value[j] = chunk.value_begin + k;
      position[j] = 0;
      if (!changes.valid[j]) continue;
      if (words) {
        position[j] = reinterpret_cast<const std::uint32_t*>(chunk.positions)[k];
      } else if (bytes == 2) {
        position[j] = reinterpret_cast<const std::uint16_t*>(chunk.positions)[k];
      } else {
        position[j] = load_position(chunk.positions + std::uint64_t{k} * bytes, bytes);
      }
    }
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      changes.at[j] = position[j];
      if constexpr (Gaps) {
        std::uint64_t sum = 0;
        if (bytes == 2) {  // the sum of 32 of them fits into 32 bits
          sum = running_sum(changes.valid[j] ? static_cast<std::uint32_t>(position[j]) + 1U : 0U,
                            lane);
        } else {
          const std::uint64_t gap = position[j] < units ? position[j] : units;
          sum = running_sum(changes.valid[j] ? gap + 1 : std::uint64_t{0}, lane);
        }
        changes.at[j] = start + sum - 1;
        start += __shfl_sync(~0U, sum, 31);
        if (start > kMaxSum) start = kMaxSum;
      }
      changes.valid[j] = changes.valid[j] && changes.at[j] < units;
      changes.at[j] = cut && changes.valid[j] ? place.at(changes.at[j]) : changes.at[j] + shift;
    }
    body(changes);
  }
}

inline unsigned patch_blocks(std::uint32_t chunks) {
  return (chunks + kPatchWarps - 1) / kPatchWarps;
}

}  // namespace driftless::cuda
