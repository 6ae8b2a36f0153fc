// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/patch.cuh"

namespace driftless::cuda {
namespace {

template <unsigned W, bool Gaps>
__global__ void __launch_bounds__(kPatchWarps * 32)
    scatter_chunks(PatchParts parts, const std::byte* positions, std::uint32_t chunks,
                   const std::byte* values_dev) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t number = blockIdx.x * kPatchWarps + threadIdx.x / 32;
  if (number >= chunks) return;
  const Chunk chunk = open_chunk(parts, positions, number, Gaps);
  auto* const units = reinterpret_cast<Unit<W>*>(chunk.tensor->data_dev);
  auto* const values = reinterpret_cast<const Unit<W>*>(values_dev);
  each_change<Gaps>(chunk, lane, [&](const Changes& changes) {
    Unit<W> value[kTogether];
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      if (changes.valid[j]) value[j] = values[changes.value[j]];
    }
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      if (changes.valid[j]) units[changes.at[j]] = value[j];
    }
  });
}

template <unsigned W>
void launch(bool gaps, const PatchParts& parts, const std::byte* positions, std::uint32_t chunks,
            const std::byte* values_dev, cudaStream_t stream) {
  const unsigned blocks = patch_blocks(chunks);
  if (gaps) {
    scatter_chunks<W, true>
        <<<blocks, kPatchWarps * 32, 0, stream>>>(parts, positions, chunks, values_dev);
  } else {
    scatter_chunks<W, false>
        <<<blocks, kPatchWarps * 32, 0, stream>>>(parts, positions, chunks, values_dev);
  }
}

}  // namespace

Status Patch::scatter(const std::byte* values_dev, Stream stream) const {
  if (chunks_ == 0) return {};
  const PatchParts parts = carve_patch(dev_, tensors_, chunks_, nullptr);
  const bool gaps = coding_ == PositionCoding::kGaps;
  const auto go = [&](auto width) {
    width(gaps, parts, positions_dev_, chunks_, values_dev, native(stream));
  };
  switch (unit_bytes_) {
    case 1: go(launch<1>); break;
    case 2: go(launch<2>); break;
    case 4: go(launch<4>); break;
    default: go(launch<8>); break;
  }
  return check_launch("scatter");
}

}  // namespace driftless::cuda
