// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/strided_patch.cuh"

namespace driftless::cuda {
namespace {

template <unsigned W>
__global__ void __launch_bounds__(kStridedWarps * 32)
    scatter(StridedTables tables, const std::uint32_t* offsets_dev, std::uint32_t begin,
            std::uint32_t end, const std::byte* values_dev, bool old) {
  each_strided(tables, offsets_dev, begin, end,
               [&](const StridedPatch::Part& part, std::uint32_t, const StridedChanges& changes) {
                 auto* const units = reinterpret_cast<Unit<W>*>(part.data_dev);
                 const std::byte* const values =
                     values_dev + (old ? part.old_begin * W : part.value_begin);
                 const ValueCast cast = old ? ValueCast::kNone : part.cast;
#pragma unroll
                 for (unsigned j = 0; j < kStridedTogether; ++j) {
                   if (changes.at[j] == StridedMap::kOutside) continue;
                   units[changes.at[j]] = load_converted<W>(values, changes.number[j], cast);
                 }
               });
}

}  // namespace

Status StridedPatch::scatter_strided(const std::byte* values_dev, bool old, Stream stream) const {
  const StridedTables tables = carve_strided(dev_, parts_, chunks_, nullptr);
  const auto go = [&](auto kernel) {
    return launch_strided(chunks_, kStridedSlice, "scatter_strided",
                          [&](auto begin, auto end, unsigned blocks) {
                            kernel<<<blocks, kStridedWarps * 32, 0, native(stream)>>>(
                                tables, offsets_dev_, begin, end, values_dev, old);
                          });
  };
  switch (unit_bytes_) {
    case 1: return go(scatter<1>);
    case 2: return go(scatter<2>);
    case 4: return go(scatter<4>);
    default: return go(scatter<8>);
  }
}

}  // namespace driftless::cuda
