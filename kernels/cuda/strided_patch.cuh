// SPDX-License-Identifier: Apache-2.0
// The device's view of a StridedPatch. A warp works on a chunk: up to 1024 changes of one part.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

inline constexpr std::uint32_t kStridedChunk = 1024;  // changes
inline constexpr unsigned kStridedWarps = 8;          // per block
inline constexpr unsigned kStridedTogether = 4;       // changes of a lane under way at once
// Chunks of one launch where others want the GPU meanwhile: 8 M changes.
inline constexpr std::uint32_t kStridedSlice = 8192;

struct StridedPart : StridedPatch::Part {
  std::uint32_t first_chunk;
};
using StridedTables = SpanTable<StridedPart>;

// A new value in the target's width.
template <unsigned W>
__device__ __forceinline__ Unit<W> load_converted(const std::byte* values, std::uint64_t k,
                                                  ValueCast cast) {
  const auto* const halves = reinterpret_cast<const std::uint16_t*>(values);
  const auto* const words = reinterpret_cast<const std::uint32_t*>(values);
  if constexpr (W == 4) {
    if (cast == ValueCast::kBF16ToF32) return f32_of_bf16(halves[k]);
    if (cast == ValueCast::kF16ToF32) return f32_of_f16(halves[k]);
  }
  if constexpr (W == 2) {
    if (cast == ValueCast::kF32ToBF16) return bf16_of_f32(words[k]);
    if (cast == ValueCast::kF32ToF16) return f16_of_f32(words[k]);
    if (cast == ValueCast::kBF16ToF16) return f16_of_f32(f32_of_bf16(halves[k]));
    if (cast == ValueCast::kF16ToBF16) return bf16_of_f32(f32_of_f16(halves[k]));
  }
  return reinterpret_cast<const Unit<W>*>(values)[k];
}

// Changes of one lane: where they go (kOutside: nowhere), and their numbers within the part.
struct StridedChanges {
  std::uint64_t at[kStridedTogether];
  std::uint64_t number[kStridedTogether];
};

// What is there, where they go.
template <unsigned W>
__device__ __forceinline__ void load_there(const Unit<W>* units, const StridedChanges& changes,
                                           Unit<W> (&there)[kStridedTogether]) {
#pragma unroll
  for (unsigned j = 0; j < kStridedTogether; ++j) {
    if (changes.at[j] != StridedMap::kOutside) there[j] = units[changes.at[j]];
  }
}

// Calls body(part, part's number, changes) until every change of the warp's chunk was among them.
template <typename Body>
__device__ __forceinline__ void each_strided(const StridedTables& tables,
                                             const std::uint32_t* offsets_dev, std::uint32_t begin,
                                             std::uint32_t end, const Body& body) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t chunk = begin + blockIdx.x * kStridedWarps + threadIdx.x / 32;
  if (chunk >= end) return;
  const std::uint32_t number = tables.span_item[chunk];
  const StridedPart& part = tables.items[number];
  const std::uint64_t skip = std::uint64_t{chunk - part.first_chunk} * kStridedChunk;
  const std::uint64_t left = part.count - skip;
  const auto count = static_cast<std::uint32_t>(left < kStridedChunk ? left : kStridedChunk);
  const std::uint32_t* const offsets = part.offset_begin == StridedPatch::kEveryUnit
                                           ? nullptr
                                           : offsets_dev + part.offset_begin + skip;
  for (std::uint32_t first = 0; first < count; first += 32 * kStridedTogether) {
    StridedChanges changes;
#pragma unroll
    for (unsigned j = 0; j < kStridedTogether; ++j) {
      const std::uint32_t k = first + j * 32 + lane;
      changes.number[j] = skip + k;
      changes.at[j] = StridedMap::kOutside;
      if (k >= count) continue;
      const std::uint64_t unit = offsets == nullptr ? skip + k : offsets[k];
      changes.at[j] = part.map.target_of(part.origin + unit);
    }
    body(part, number, changes);
  }
}

// Queues the kernel for all chunks, `slice` at a time.
template <typename Kernel, typename... Arguments>
Status launch_strided(std::uint32_t chunks, std::uint32_t slice, const char* name, Kernel kernel,
                      Stream stream, const StridedTables& tables, const std::uint32_t* offsets_dev,
                      Arguments... arguments) {
  for (std::uint32_t begin = 0; begin < chunks;) {
    const std::uint32_t end = chunks - begin < slice ? chunks : begin + slice;
    const std::uint32_t blocks = (end - begin + kStridedWarps - 1) / kStridedWarps;
    kernel<<<blocks, kStridedWarps * 32, 0, native(stream)>>>(tables, offsets_dev, begin, end,
                                                              arguments...);
    DRIFTLESS_RETURN_IF_ERROR(check_launch(name));
    begin = end;
  }
  return {};
}

}  // namespace driftless::cuda
