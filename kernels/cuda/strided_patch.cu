// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/strided_patch.cuh"

#include <algorithm>

namespace driftless::cuda {
namespace {

std::uint64_t chunks_of(const StridedPatch::Part& part) {
  return (part.count + kStridedChunk - 1) / kStridedChunk;
}

std::uint64_t chunks_of(std::span<const StridedPatch::Part> parts) {
  std::uint64_t chunks = 0;
  for (const StridedPatch::Part& part : parts) chunks += chunks_of(part);
  return chunks;
}

// What was written is read back past the SM's own cache: as every other reader will find it.
template <unsigned W>
__device__ bool holds(const Unit<W>* units, const StridedChanges& changes,
                      const Unit<W> (&written)[kStridedTogether]) {
  bool all = true;
#pragma unroll
  for (unsigned j = 0; j < kStridedTogether; ++j) {
    if (changes.at[j] == StridedMap::kOutside) continue;
    all = all && *static_cast<const volatile Unit<W>*>(units + changes.at[j]) == written[j];
  }
  return all;
}

template <unsigned W>
__global__ void __launch_bounds__(kStridedWarps * 32)
    exchange(StridedTables tables, const std::uint32_t* offsets_dev, std::uint32_t begin,
             std::uint32_t end, const std::byte* values_dev, std::byte* old_dev,
             std::uint32_t* differs_dev) {
  each_strided(
      tables, offsets_dev, begin, end,
      [&](const StridedPatch::Part& part, std::uint32_t number, const StridedChanges& changes) {
        auto* const units = reinterpret_cast<Unit<W>*>(part.data_dev);
        auto* const old = reinterpret_cast<Unit<W>*>(old_dev) + part.old_begin;
        Unit<W> there[kStridedTogether], written[kStridedTogether];
        load_there<W>(units, changes, there);
        bool differs = false;
#pragma unroll
        for (unsigned j = 0; j < kStridedTogether; ++j) {
          if (changes.at[j] == StridedMap::kOutside) continue;
          written[j] =
              load_converted<W>(values_dev + part.value_begin, changes.number[j], part.cast);
          units[changes.at[j]] = written[j];
          if (differs_dev != nullptr && old[changes.number[j]] == there[j]) continue;
          old[changes.number[j]] = there[j];
          differs = differs_dev != nullptr;
        }
        if (differs) atomicMin(differs_dev, number);
        if (differs_dev == nullptr) return;
        if (!holds<W>(units, changes, written)) atomicMin(differs_dev + 1, number);
      });
}

}  // namespace

WorkspaceSize StridedPatch::workspace_size(std::span<const Part> parts) {
  return span_table_size<StridedPart>(parts.size(), chunks_of(parts));
}

Result<StridedPatch> StridedPatch::make(std::span<const Part> parts, unsigned unit_bytes,
                                        const std::uint32_t* offsets_dev,
                                        const Workspace& workspace, Stream stream) {
  constexpr std::uint64_t kMost = 0xffffffffU;
  const std::uint64_t chunks = chunks_of(parts);
  if (!valid_width(unit_bytes) || chunks >= kMost || parts.size() >= kMost) {
    return error(StatusCode::kInvalidArgument, "a strided patch of ", parts.size(), " parts in ",
                 chunks, " chunks, units of ", unit_bytes, " bytes, cannot be made");
  }
  StridedPatch patch;
  patch.unit_bytes_ = unit_bytes;
  patch.parts_ = static_cast<std::uint32_t>(parts.size());
  patch.chunks_ = static_cast<std::uint32_t>(chunks);
  patch.offsets_dev_ = offsets_dev;
  patch.dev_ = workspace.dev;
  DRIFTLESS_RETURN_IF_ERROR(
      place_spans<StridedPart>(parts, chunks, workspace, "a strided patch on the device", stream,
                               [](const Part& part, std::uint32_t first) {
                                 return std::pair(StridedPart{part, first}, chunks_of(part));
                               }));
  return patch;
}

Status StridedPatch::exchange_strided(const std::byte* values_dev, std::byte* old_values_dev,
                                      std::uint32_t* differs_dev, Stream stream) const {
  const auto tables = carve_spans<StridedPart>(dev_, parts_, chunks_);
  const auto kernel = by_width(unit_bytes_, exchange<1>, exchange<2>, exchange<4>, exchange<8>);
  return launch_strided(chunks_, chunks_, "exchange_strided", kernel, stream, tables, offsets_dev_,
                        values_dev, old_values_dev, differs_dev);
}

}  // namespace driftless::cuda
