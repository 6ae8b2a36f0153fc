// SPDX-License-Identifier: Apache-2.0
// The digest (core/digest.h) on the device: full sweeps, and the changes of a patch.
#include <algorithm>

#include "kernels/cuda/digest.cuh"
#include "kernels/cuda/patch.cuh"

namespace driftless::cuda {
namespace {

constexpr std::uint32_t kSpanBlocks =
    32;  // digest blocks that a warp sweeps at a time: a key per lane

struct DevPiece : DigestPiece {
  std::uint64_t first_span;
};

// Sums a whole block of 4096 bytes; a lane has 32 of its words.
__device__ __forceinline__ void sweep_block(const PlaceKeys& keys, const uint4* words,
                                            unsigned lane,
                                            std::uint64_t (&totals)[2 * kDigestLanes]) {
  uint4 loaded[8];
#pragma unroll
  for (unsigned j = 0; j < 8; ++j) loaded[j] = __ldcs(words + j * 32 + lane);
#pragma unroll
  for (unsigned part = 0; part < 2; ++part) {
    std::uint64_t sums[2 * kDigestLanes] = {};
#pragma unroll
    for (unsigned j = 4 * part; j < 4 * part + 4; ++j) {  // 16 products each fit into 64 bits
      add_group(keys, j * 32 + lane, loaded[j], sums);
    }
#pragma unroll
    for (unsigned half = 0; half < 2 * kDigestLanes; ++half) totals[half] += lazy_fold(sums[half]);
  }
}

// Sums any part of a block: its bytes [from, to); `bytes` points to the first.
__device__ void sweep_part(const PlaceKeys& keys, const std::byte* bytes, std::uint32_t from,
                           std::uint32_t to, unsigned lane,
                           std::uint64_t (&totals)[2 * kDigestLanes]) {
  for (std::uint32_t word = from / 4 + lane; word * 4 < to; word += 32) {
    std::uint32_t bits = 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t at = word * 4 + i;
      if (at >= from && at < to) bits |= static_cast<std::uint32_t>(bytes[at - from]) << (8 * i);
    }
#pragma unroll
    for (unsigned half = 0; half < 2 * kDigestLanes; ++half) {
      totals[half] = lazy_fold(totals[half]) + lazy_fold(wide(bits, keys.half[half][word]));
    }
  }
}

__global__ void __launch_bounds__(kDigestWarps * 32)
    sweep(const DevPiece* pieces, const std::uint32_t* span_piece, std::uint32_t spans,
          std::uint64_t* out) {
  __shared__ PlaceKeys keys;
  fill_place_keys(keys);
  const unsigned lane = threadIdx.x % 32;
  std::uint64_t sums[kDigestLanes] = {};
  for (std::uint32_t span = blockIdx.x * kDigestWarps + threadIdx.x / 32; span < spans;
       span += gridDim.x * kDigestWarps) {
    const DevPiece piece = pieces[span_piece[span]];
    const std::uint64_t first =
        piece.byte_offset / kDigestBlockBytes + (span - piece.first_span) * kSpanBlocks;
    const std::uint64_t end = piece.byte_offset + piece.size_bytes;
    std::uint64_t lane_keys[kDigestLanes];
#pragma unroll
    for (unsigned i = 0; i < kDigestLanes; ++i) {
      lane_keys[i] = digest_block_key(piece.key, first + lane, i);
    }
    for (unsigned i = 0; i < kSpanBlocks; ++i) {
      const std::uint64_t begin = (first + i) * kDigestBlockBytes;
      if (begin >= end) break;
      std::uint64_t totals[2 * kDigestLanes] = {};
      const std::byte* const at = piece.bytes_dev + (begin - piece.byte_offset);
      if (begin >= piece.byte_offset && begin + kDigestBlockBytes <= end &&
          reinterpret_cast<std::uintptr_t>(at) % 16 == 0) {
        sweep_block(keys, reinterpret_cast<const uint4*>(at), lane, totals);
      } else {
        const std::uint64_t from = begin < piece.byte_offset ? piece.byte_offset - begin : 0;
        const std::uint64_t to = end - begin < kDigestBlockBytes ? end - begin : kDigestBlockBytes;
        sweep_part(keys, at + from, static_cast<std::uint32_t>(from),
                   static_cast<std::uint32_t>(to), lane, totals);
      }
      std::uint64_t block_keys[kDigestLanes];
#pragma unroll
      for (unsigned k = 0; k < kDigestLanes; ++k) {
        block_keys[k] = __shfl_sync(~0U, lane_keys[k], i);
      }
      add_block(totals, block_keys, sums);
    }
  }
  add_sums(sums, out);
}

// Cut: a block contains only some columns, so positions need divisions, which cost registers.
template <unsigned W, bool Gaps, bool Cut>
__global__ void __launch_bounds__(kPatchWarps * 32)
    sum_changes(PatchParts parts, const std::byte* positions, std::uint32_t chunks,
                const std::byte* old_dev, const std::byte* new_dev, std::uint64_t* out) {
  const unsigned lane = threadIdx.x % 32;
  const std::uint32_t number = blockIdx.x * kPatchWarps + threadIdx.x / 32;
  if (number >= chunks) return;
  const Chunk chunk = open_chunk(parts, positions, number, Gaps);
  const DigestTensorKey key = chunk.tensor->key;
  const auto* const before = reinterpret_cast<const Unit<W>*>(old_dev);
  const auto* const after = reinterpret_cast<const Unit<W>*>(new_dev);
  std::uint64_t sums[kDigestLanes] = {};
  each_change<Gaps, Cut>(chunk, lane, [&](const Changes& changes) {
    std::uint64_t a[kTogether], b[kTogether];
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      if (!changes.valid[j]) continue;
      a[j] = before[changes.value[j]];
      b[j] = after[changes.value[j]];
    }
#pragma unroll
    for (unsigned j = 0; j < kTogether; ++j) {
      if (changes.valid[j]) add_unit<W>(key, changes.at[j], a[j], b[j], sums);
    }
  });
  __syncwarp();
  add_sums(sums, out + std::uint64_t{kDigestSums} * parts.chunk_tensor[number]);
}

template <bool Gaps, bool Cut>
auto changes_kernel(unsigned unit_bytes) {
  return by_width(unit_bytes, sum_changes<1, Gaps, Cut>, sum_changes<2, Gaps, Cut>,
                  sum_changes<4, Gaps, Cut>, sum_changes<8, Gaps, Cut>);
}
template <bool Gaps>
auto changes_kernel(unsigned unit_bytes, bool cut) {
  return cut ? changes_kernel<Gaps, true>(unit_bytes) : changes_kernel<Gaps, false>(unit_bytes);
}

std::uint64_t spans_of(const DigestPiece& piece) {
  if (piece.size_bytes == 0) return 0;
  const std::uint64_t first = piece.byte_offset / kDigestBlockBytes;
  const std::uint64_t last = (piece.byte_offset + piece.size_bytes - 1) / kDigestBlockBytes;
  return (last - first) / kSpanBlocks + 1;
}

std::uint64_t spans_of(std::span<const DigestPiece> pieces) {
  std::uint64_t spans = 0;
  for (const DigestPiece& piece : pieces) spans += spans_of(piece);
  return spans;
}

}  // namespace

WorkspaceSize digest_workspace_size(std::span<const DigestPiece> pieces) {
  return span_table_size<DevPiece>(pieces.size(), spans_of(pieces));
}

Status digest(std::span<const DigestPiece> pieces, const Workspace& workspace,
              std::uint64_t* sums_dev, Stream stream) {
  const std::uint64_t spans = spans_of(pieces);
  if (spans >= (std::uint64_t{1} << 31)) {
    return error(StatusCode::kInvalidArgument, "a digest over ", spans,
                 " stretches of 128 KiB at once: cut it in two");
  }
  DRIFTLESS_RETURN_IF_ERROR(clear_sums(sums_dev, 1, stream));
  if (spans == 0) return {};
  DRIFTLESS_RETURN_IF_ERROR(
      place_spans<DevPiece>(pieces, spans, workspace, "a digest on the device", stream,
                            [](const DigestPiece& piece, std::uint32_t first) {
                              return std::pair(DevPiece{piece, first}, spans_of(piece));
                            }));
  const auto dev = carve_spans<DevPiece>(workspace.dev, pieces.size(), spans);
  constexpr std::uint64_t kMaxBlocks = 132 * 6;
  const auto blocks = static_cast<unsigned>(
      std::min<std::uint64_t>((spans + kDigestWarps - 1) / kDigestWarps, kMaxBlocks));
  sweep<<<blocks, kDigestWarps * 32, 0, native(stream)>>>(
      dev.items, dev.span_item, static_cast<std::uint32_t>(spans), sums_dev);
  return check_launch("sweep");
}

Status Patch::digest_changes(const std::byte* old_values_dev, const std::byte* new_values_dev,
                             std::uint64_t* sums_dev, Stream stream) const {
  DRIFTLESS_RETURN_IF_ERROR(clear_sums(sums_dev, tensors_, stream));
  if (chunks_ == 0) return {};
  const auto kernel = coding_ == PositionCoding::kGaps ? changes_kernel<true>(unit_bytes_, cut_)
                                                       : changes_kernel<false>(unit_bytes_, cut_);
  kernel<<<patch_blocks(chunks_), kPatchWarps * 32, 0, native(stream)>>>(
      carve_patch(dev_, tensors_, chunks_), positions_dev_, chunks_, old_values_dev, new_values_dev,
      sums_dev);
  return check_launch("sum_changes");
}

Digest digest_from_sums(std::span<const std::uint64_t, kDigestSums> sums) {
  Digest digest;
  for (std::size_t lane = 0; lane < kDigestLanes; ++lane) {
    const std::uint64_t high = digest_fold(sums[2 * lane + 1]);
    digest.lanes[lane] =
        digest_add(digest_fold(sums[2 * lane]), digest_multiply(high, std::uint64_t{1} << 32));
  }
  return digest;
}

}  // namespace driftless::cuda
