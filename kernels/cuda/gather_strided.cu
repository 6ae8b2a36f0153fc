// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/strided_patch.cuh"

namespace driftless::cuda {
namespace {

template <unsigned W>
__global__ void __launch_bounds__(kStridedWarps * 32)
    gather(StridedTables tables, const std::uint32_t* offsets_dev, std::uint32_t begin,
           std::uint32_t end, std::byte* old_dev) {
  each_strided(tables, offsets_dev, begin, end,
               [&](const StridedPatch::Part& part, std::uint32_t, const StridedChanges& changes) {
                 const auto* const units = reinterpret_cast<const Unit<W>*>(part.data_dev);
                 auto* const old = reinterpret_cast<Unit<W>*>(old_dev) + part.old_begin;
                 Unit<W> there[kStridedTogether];
#pragma unroll
                 for (unsigned j = 0; j < kStridedTogether; ++j) {
                   if (changes.at[j] != StridedMap::kOutside) there[j] = units[changes.at[j]];
                 }
#pragma unroll
                 for (unsigned j = 0; j < kStridedTogether; ++j) {
                   if (changes.at[j] != StridedMap::kOutside) old[changes.number[j]] = there[j];
                 }
               });
}

}  // namespace

Status StridedPatch::gather_strided(std::byte* old_values_dev, Stream stream) const {
  const StridedTables tables = carve_strided(dev_, parts_, chunks_, nullptr);
  const auto go = [&](auto kernel) {
    return launch_strided(chunks_, kStridedSlice, "gather_strided",
                          [&](auto begin, auto end, unsigned blocks) {
                            kernel<<<blocks, kStridedWarps * 32, 0, native(stream)>>>(
                                tables, offsets_dev_, begin, end, old_values_dev);
                          });
  };
  switch (unit_bytes_) {
    case 1: return go(gather<1>);
    case 2: return go(gather<2>);
    case 4: return go(gather<4>);
    default: return go(gather<8>);
  }
}

}  // namespace driftless::cuda
