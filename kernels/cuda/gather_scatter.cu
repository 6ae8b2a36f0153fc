// SPDX-License-Identifier: Apache-2.0
#include <type_traits>

#include "kernels/cuda/patch.cuh"
#include "kernels/cuda/strided_patch.cuh"

namespace driftless::cuda {
namespace {

template <bool Scatter>
using ValueBytes = std::conditional_t<Scatter, const std::byte, std::byte>;

template <unsigned W, bool Gaps, bool Scatter>
__global__ void __launch_bounds__(kPatchWarps * 32)
    move_chunks(PatchParts parts, const std::byte* positions, std::uint32_t chunks,
                ValueBytes<Scatter>* values_dev) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t number = blockIdx.x * kPatchWarps + threadIdx.x / 32;
  if (number >= chunks) return;
  const Chunk chunk = open_chunk(parts, positions, number, Gaps);
  auto* const units = reinterpret_cast<Unit<W>*>(chunk.tensor->data_dev);
  auto* const values =
      reinterpret_cast<std::conditional_t<Scatter, const Unit<W>, Unit<W>>*>(values_dev);
  each_change<Gaps>(chunk, lane, [&](const Changes& changes) {
    Unit<W> value[kTogether];
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      if (!changes.valid[j]) continue;
      value[j] = Scatter ? values[changes.value[j]] : units[changes.at[j]];
    }
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      if (!changes.valid[j]) continue;
      if constexpr (Scatter) {
        units[changes.at[j]] = value[j];
      } else {
        values[changes.value[j]] = value[j];
      }
    }
  });
}

template <bool Gaps, bool Scatter>
auto move_kernel(unsigned unit_bytes) {
  return by_width(unit_bytes, move_chunks<1, Gaps, Scatter>, move_chunks<2, Gaps, Scatter>,
                  move_chunks<4, Gaps, Scatter>, move_chunks<8, Gaps, Scatter>);
}

template <unsigned W, PositionsFrom From>
__global__ void __launch_bounds__(kStridedWarps * 32)
    gather(StridedTables tables, StridedPositions from, std::uint32_t begin, std::uint32_t end,
           std::byte* old_dev) {
  each_strided<From>(
      tables, from, begin, end,
      [&](const StridedPatch::Part& part, std::uint32_t, const StridedChanges& changes) {
        const auto* const units = reinterpret_cast<const Unit<W>*>(part.data_dev);
        auto* const old = reinterpret_cast<Unit<W>*>(old_dev) + part.old_begin;
        Unit<W> there[kStridedTogether];
        load_there<W>(units, changes, there);
#pragma unroll
        for (unsigned j = 0; j < kStridedTogether; ++j) {
          if (changes.at[j] != StridedMap::kOutside) old[changes.number[j]] = there[j];
        }
      });
}

template <unsigned W, PositionsFrom From>
__global__ void __launch_bounds__(kStridedWarps * 32)
    scatter(StridedTables tables, StridedPositions from, std::uint32_t begin, std::uint32_t end,
            const std::byte* values_dev, bool old) {
  each_strided<From>(
      tables, from, begin, end,
      [&](const StridedPatch::Part& part, std::uint32_t, const StridedChanges& changes) {
        auto* const units = reinterpret_cast<Unit<W>*>(part.data_dev);
        const std::byte* const values = values_dev + (old ? part.old_begin * W : part.value_begin);
        const ValueCast cast = old ? ValueCast::kNone : part.cast;
#pragma unroll
        for (unsigned j = 0; j < kStridedTogether; ++j) {
          if (changes.at[j] == StridedMap::kOutside) continue;
          units[changes.at[j]] = load_converted<W>(values, changes.number[j], cast);
        }
      });
}

}  // namespace

Status Patch::gather(std::byte* values_dev, Stream stream) const {
  if (chunks_ == 0) return {};
  const auto kernel = coding_ == PositionCoding::kGaps ? move_kernel<true, false>(unit_bytes_)
                                                       : move_kernel<false, false>(unit_bytes_);
  kernel<<<patch_blocks(chunks_), kPatchWarps * 32, 0, native(stream)>>>(
      carve_patch(dev_, tensors_, chunks_), positions_dev_, chunks_, values_dev);
  return check_launch("gather");
}

Status Patch::scatter(const std::byte* values_dev, Stream stream) const {
  if (chunks_ == 0) return {};
  const auto kernel = coding_ == PositionCoding::kGaps ? move_kernel<true, true>(unit_bytes_)
                                                       : move_kernel<false, true>(unit_bytes_);
  kernel<<<patch_blocks(chunks_), kPatchWarps * 32, 0, native(stream)>>>(
      carve_patch(dev_, tensors_, chunks_), positions_dev_, chunks_, values_dev);
  return check_launch("scatter");
}

Status StridedPatch::gather_strided(std::byte* old_values_dev, Stream stream) const {
  const auto kernel = [&]<PositionsFrom From>() {
    return by_width(unit_bytes_, cuda::gather<1, From>, cuda::gather<2, From>,
                    cuda::gather<4, From>, cuda::gather<8, From>);
  };
  return launch_strided(work(), kStridedSlice, "gather_strided", kernel, stream, old_values_dev);
}

Status StridedPatch::scatter_strided(const std::byte* values_dev, bool old, Stream stream) const {
  const auto kernel = [&]<PositionsFrom From>() {
    return by_width(unit_bytes_, cuda::scatter<1, From>, cuda::scatter<2, From>,
                    cuda::scatter<4, From>, cuda::scatter<8, From>);
  };
  return launch_strided(work(), kStridedSlice, "scatter_strided", kernel, stream, values_dev, old);
}

}  // namespace driftless::cuda
