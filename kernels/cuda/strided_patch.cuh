// SPDX-License-Identifier: Apache-2.0
// Device structures for a StridedPatch. A warp works on a chunk: up to 1024 changes of one part.
#pragma once

#include "kernels/cuda/patch.cuh"

namespace driftless::cuda {

inline constexpr std::uint32_t kStridedChunk = 1024;  // changes
inline constexpr unsigned kStridedWarps = 8;          // per block
inline constexpr unsigned kStridedTogether = 4;       // changes of a lane in flight at once
// Chunks per launch if other work needs the GPU meanwhile: 8 M changes.
inline constexpr std::uint32_t kStridedSlice = 8192;

struct StridedPart : StridedPatch::Part {
  std::uint32_t first_chunk;
};
using StridedTables = SpanTable<StridedPart>;

// The source of the positions. Chunks of streams are those of the Patch.
static_assert(kStridedChunk == kChunk && kStridedTogether == kTogether);
enum class PositionsFrom : unsigned char { kOffsets, kIndices, kGaps };
struct StridedPositions {
  const std::uint32_t* offsets = nullptr;  // for kOffsets
  PatchParts patch;                        // for streams
  const std::byte* stream = nullptr;
};

// A new value, converted to the target's type.
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

// The changes of one lane: their targets (kOutside: none), and their numbers within the part.
struct StridedChanges {
  std::uint64_t at[kStridedTogether];
  std::uint64_t number[kStridedTogether];
  std::uint64_t unit[kStridedTogether];  // of the tensor
};

// Loads the current content of the targets.
template <unsigned W>
__device__ __forceinline__ void load_there(const Unit<W>* units, const StridedChanges& changes,
                                           Unit<W> (&there)[kStridedTogether]) {
#pragma unroll
  for (unsigned j = 0; j < kStridedTogether; ++j) {
    if (changes.at[j] != StridedMap::kOutside) there[j] = units[changes.at[j]];
  }
}

// Whether any position of a stream's chunk may lie in the map. The first and the last position
// decide, unless the block contains only some columns.
template <bool Gaps>
__device__ __forceinline__ bool may_meet(const StridedPositions& from, const Chunk& opened,
                                         std::uint32_t chunk, const StridedMap& map) {
  const PatchTensor& tensor = *opened.tensor;
  if (tensor.place.dims != 0) return true;
  const unsigned bytes = tensor.entry.position_bytes;
  const std::uint64_t first = load_position(opened.positions, bytes);
  std::uint64_t low = opened.start + first, high = 0;
  if constexpr (Gaps) {
    high = from.patch.before[chunk + 1] - from.patch.before[tensor.first_chunk];
  } else {
    low = first;
    high = load_position(opened.positions + std::uint64_t{opened.count - 1} * bytes, bytes) + 1;
  }
  return tensor.place.first + low < map.source_end && tensor.place.first + high > map.source_offset;
}

template <bool Gaps, typename Body>
__device__ __forceinline__ void each_streamed(const StridedPart& part, std::uint32_t number,
                                              const StridedPositions& from, std::uint32_t chunk,
                                              unsigned lane, const Body& body) {
  const Chunk opened = open_chunk(from.patch, from.stream, chunk, Gaps);
  if (!may_meet<Gaps>(from, opened, chunk, part.map)) return;
  const std::uint64_t first_value = opened.tensor->entry.value_begin;
  each_change<Gaps>(opened, lane, [&](const Changes& found) {
    StridedChanges changes;
#pragma unroll
    for (unsigned j = 0; j < kStridedTogether; ++j) {
      changes.number[j] = found.value[j] - first_value;
      changes.unit[j] = found.at[j];
      changes.at[j] = found.valid[j] ? part.map.target_of(found.at[j]) : StridedMap::kOutside;
    }
    body(part, number, changes);
  });
}

// Calls body(part, part's number, changes) until it has processed every change of the warp's chunk.
template <PositionsFrom From, typename Body>
__device__ __forceinline__ void each_strided(const StridedTables& tables,
                                             const StridedPositions& from, std::uint32_t begin,
                                             std::uint32_t end, const Body& body) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t chunk = begin + blockIdx.x * kStridedWarps + threadIdx.x / 32;
  if (chunk >= end) return;
  const std::uint32_t number = tables.span_item[chunk];
  const StridedPart& part = tables.items[number];
  if constexpr (From != PositionsFrom::kOffsets) {
    each_streamed<From == PositionsFrom::kGaps>(part, number, from, chunk, lane, body);
    return;
  }
  const std::uint64_t skip = std::uint64_t{chunk - part.first_chunk} * kStridedChunk;
  const std::uint64_t left = part.count - skip;
  const auto count = static_cast<std::uint32_t>(left < kStridedChunk ? left : kStridedChunk);
  const std::uint32_t* const offsets = part.offset_begin == StridedPatch::kEveryUnit
                                           ? nullptr
                                           : from.offsets + part.offset_begin + skip;
  for (std::uint32_t first = 0; first < count; first += 32 * kStridedTogether) {
    StridedChanges changes;
#pragma unroll
    for (unsigned j = 0; j < kStridedTogether; ++j) {
      const std::uint32_t k = first + j * 32 + lane;
      changes.number[j] = skip + k;
      changes.at[j] = StridedMap::kOutside;
      if (k >= count) continue;
      changes.unit[j] = part.origin + (offsets == nullptr ? skip + k : offsets[k]);
      changes.at[j] = part.map.target_of(changes.unit[j]);
    }
    body(part, number, changes);
  }
}

// The work of one launch of a patch.
struct StridedWork {
  StridedTables tables;
  PositionsFrom kind = PositionsFrom::kOffsets;
  StridedPositions from;
  std::uint32_t chunks = 0;
};

// Queues the kernel for all chunks, `slice` at a time. `kernel` returns the kernel for the source
// of the positions.
template <typename Kernel, typename... Arguments>
Status launch_strided(const StridedWork& work, std::uint32_t slice, const char* name,
                      const Kernel& kernel, Stream stream, Arguments... arguments) {
  const auto chosen =
      work.kind == PositionsFrom::kOffsets   ? kernel.template operator()<PositionsFrom::kOffsets>()
      : work.kind == PositionsFrom::kIndices ? kernel.template operator()<PositionsFrom::kIndices>()
                                             : kernel.template operator()<PositionsFrom::kGaps>();
  for (std::uint32_t begin = 0; begin < work.chunks;) {
    const std::uint32_t end = work.chunks - begin < slice ? work.chunks : begin + slice;
    const std::uint32_t blocks = (end - begin + kStridedWarps - 1) / kStridedWarps;
    chosen<<<blocks, kStridedWarps * 32, 0, native(stream)>>>(work.tables, work.from, begin, end,
                                                              arguments...);
    DRIFTLESS_RETURN_IF_ERROR(check_launch(name));
    begin = end;
  }
  return {};
}

}  // namespace driftless::cuda
