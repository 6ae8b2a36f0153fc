// The device's view of a Patch. A warp works on a chunk: up to 1024 changes of one tensor.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

inline constexpr std::uint32_t kChunk = 1024;  // changes
inline constexpr unsigned kPatchWarps = 8;     // per block
// Sums of gaps stop here: no tensor is as long, and they never wrap.
inline constexpr std::uint64_t kMaxSum = std::uint64_t{1} << 62;

struct PatchTensor {
  std::byte* data_dev;
  std::uint64_t units;
  StreamEntry entry;
  DigestTensorKey key;
  std::uint32_t first_chunk;
};

struct PatchParts {
  PatchTensor* tensors = nullptr;
  std::uint32_t* chunk_tensor = nullptr;
  std::uint64_t* before = nullptr;  // per chunk: gaps + 1 of all chunks before it, added up
  std::uint32_t* bad = nullptr;     // the first tensor whose positions are wrong
  std::byte* scan = nullptr;
};
struct PatchHostParts {
  PatchTensor* tensors = nullptr;
  std::uint32_t* chunk_tensor = nullptr;
  std::uint32_t* bad = nullptr;
};
[[nodiscard]] PatchParts carve_patch(std::byte* dev, std::uint32_t tensors, std::uint32_t chunks,
                                     std::uint64_t* used);
[[nodiscard]] PatchHostParts carve_patch_host(std::byte* host, std::uint32_t tensors,
                                              std::uint32_t chunks, std::uint64_t* used);

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

// The sum of `value` over this lane and those before it.
template <typename T>
__device__ __forceinline__ T running_sum(T value, unsigned lane) {
#pragma unroll
  for (unsigned step = 1; step < 32; step *= 2) {
    const T left = __shfl_up_sync(~0U, value, step);
    if (lane >= step) value += left;
  }
  return value;
}

// A chunk: where its positions and values lie.
struct Chunk {
  const PatchTensor* tensor;
  const std::byte* positions;
  std::uint64_t value_begin;
  std::uint32_t count;
  std::uint64_t start;  // of its gaps: one past the position before it
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

// Calls body(index of the value, position) for every change of the chunk, a lane each; what lies
// past the tensor's end is left out. All lanes of the warp take part.
template <bool Gaps, typename Body>
__device__ __forceinline__ void each_change(const Chunk& chunk, unsigned lane, const Body& body) {
  const unsigned bytes = chunk.tensor->entry.position_bytes;
  const std::uint64_t units = chunk.tensor->units;
  if (!Gaps) {
#pragma unroll 4
    for (std::uint32_t k = lane; k < chunk.count; k += 32) {
      const std::uint64_t at =
          load_position(chunk.positions + std::uint64_t{k} * bytes, bytes);
      if (at < units) body(chunk.value_begin + k, at);
    }
    return;
  }
  std::uint64_t start = chunk.start;
  if (bytes == 2) {  // a chunk's sum fits 32 bits
    const auto* const gaps = reinterpret_cast<const std::uint16_t*>(chunk.positions);
    for (std::uint32_t first = 0; first < chunk.count; first += 128) {
      std::uint32_t step[4];
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const std::uint32_t k = first + j * 32 + lane;
        step[j] = k < chunk.count ? gaps[k] + 1U : 0;
      }
#pragma unroll
      for (unsigned j = 0; j < 4; ++j) {
        const std::uint32_t k = first + j * 32 + lane;
        const std::uint32_t sum = running_sum(step[j], lane);
        const std::uint64_t at = start + sum - 1;
        if (k < chunk.count && at < units) body(chunk.value_begin + k, at);
        start += __shfl_sync(~0U, sum, 31);
      }
    }
    return;
  }
  for (std::uint32_t first = 0; first < chunk.count; first += 32) {
    const std::uint32_t k = first + lane;
    std::uint64_t step = 0;
    if (k < chunk.count) {
      const std::uint64_t gap = load_position(chunk.positions + std::uint64_t{k} * bytes, bytes);
      step = (gap < units ? gap : units) + 1;  // 32 of them do not wrap
    }
    const std::uint64_t sum = running_sum(step, lane);
    const std::uint64_t at = start + sum - 1;
    if (k < chunk.count && at < units) body(chunk.value_begin + k, at);
    start += __shfl_sync(~0U, sum, 31);
    if (start > kMaxSum) start = kMaxSum;
  }
}

inline unsigned patch_blocks(std::uint32_t chunks) {
  return (chunks + kPatchWarps - 1) / kPatchWarps;
}

}  // namespace driftless::cuda
