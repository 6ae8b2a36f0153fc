// SPDX-License-Identifier: Apache-2.0
// A thread block processes a block of a matrix: it reads the weights once, 64 into the registers of
// each thread, computes the largest magnitude of all, and writes the codes. A block that is not at
// multiples of 16 bytes is read twice, weight by weight.
#include <cstring>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize.h"
#include "kernels/fp8_rule.h"
#include "kernels/fp8_words.h"

namespace driftless::cuda {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kGroup = 8;                            // weights in 16 bytes
constexpr unsigned kRowGroups = kQuantizeBlock / kGroup;  // adjacent threads
constexpr unsigned kRowsAtOnce = kThreads / kRowGroups;
constexpr unsigned kGroups = kQuantizeBlock / kRowsAtOnce;  // per thread

struct Item {
  QuantizePart of;
  std::uint32_t first_block;  // number in the launch
  std::uint32_t blocks_wide;
  bool grouped;  // reads and writes all its blocks in groups
};

// The intersection of a part of a matrix with one block.
struct Meeting {
  const std::byte* weights;
  std::byte* codes;  // may be null
  std::uint16_t* largest;
  std::uint64_t stride;
  std::uint32_t rows, columns;
};

__device__ Meeting meeting_of(const Item& item, std::uint32_t block) {
  const MatrixPart& part = item.of.part;
  const std::uint64_t i = block / item.blocks_wide, j = block % item.blocks_wide;
  const std::uint64_t row = i == 0 ? 0 : i * kQuantizeBlock - part.row;
  const std::uint64_t column = j == 0 ? 0 : j * kQuantizeBlock - part.column;
  const std::uint64_t row_end = (i + 1) * kQuantizeBlock - part.row;
  const std::uint64_t column_end = (j + 1) * kQuantizeBlock - part.column;
  const std::uint64_t at = row * part.stride + column;
  Meeting here;
  here.weights = item.of.weights_dev + at * sizeof(std::uint16_t);
  here.codes = item.of.codes_dev == nullptr ? nullptr : item.of.codes_dev + at;
  here.largest = item.of.largest_dev + block;
  here.stride = part.stride;
  here.rows = static_cast<std::uint32_t>((row_end < part.rows ? row_end : part.rows) - row);
  here.columns =
      static_cast<std::uint32_t>((column_end < part.columns ? column_end : part.columns) - column);
  return here;
}

// The codes of the two weights of a word; the first one is in the lower byte.
template <bool kDivides>
__device__ __forceinline__ std::uint32_t two_codes(std::uint32_t weights, float factor) {
  const float first = __uint_as_float(weights << 16);
  const float second = __uint_as_float(weights & 0xffff0000U);
  const float low = kDivides ? __fdiv_rn(first, factor) : __fmul_rn(first, factor);
  const float high = kDivides ? __fdiv_rn(second, factor) : __fmul_rn(second, factor);
#if __CUDA_ARCH__ >= 890
  // Rounds and clamps as e4m3_of(value, 0) does; the code of a NaN is 0x7f.
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#else
  return e4m3_of(low, 0) | std::uint32_t{e4m3_of(high, 0)} << 8;
#endif
}

template <bool kDivides>
__device__ __forceinline__ std::uint32_t four_codes(std::uint32_t first, std::uint32_t second,
                                                    const CodeRule& rule) {
  const std::uint32_t codes =
      two_codes<kDivides>(first, rule.factor) | two_codes<kDivides>(second, rule.factor) << 16;
  return rule.most_added != 0 ? doubled_codes(codes) : codes;
}

// The maximum over all threads and of `known`. All threads call it.
__device__ std::uint16_t agree(std::uint32_t sizes, std::uint16_t* known) {
  __shared__ std::uint32_t of_warps[kThreads / 32];
  for (unsigned step = 16; step != 0; step /= 2) {
    sizes = larger_of_two(sizes, __shfl_xor_sync(~0U, sizes, step));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sizes;
  const std::uint16_t before = *known;
  __syncthreads();
  for (const std::uint32_t each : of_warps) sizes = larger_of_two(sizes, each);
  const std::uint16_t found = larger_half(sizes);
  const std::uint16_t largest = before < found ? found : before;
  if (threadIdx.x == 0 && largest != before) *known = largest;
  return largest;
}

template <QuantizeRule kRule>
__device__ __forceinline__ void quantize_groups(const Meeting& here) {
  constexpr bool kDivides = kRule == QuantizeRule::kLinearDiv;
  const std::uint32_t column = threadIdx.x % kRowGroups * kGroup;
  const std::uint32_t first_row = threadIdx.x / kRowGroups;
  const bool inside = column < here.columns;
  uint4 groups[kGroups];
#pragma unroll
  for (unsigned k = 0; k < kGroups; ++k) {
    const std::uint32_t row = first_row + k * kRowsAtOnce;
    const std::uint64_t at = row * here.stride + column;
    groups[k] = inside && row < here.rows
                    ? __ldcs(reinterpret_cast<const uint4*>(here.weights + at * 2))
                    : uint4{0, 0, 0, 0};
  }
  std::uint32_t sizes = 0;
#pragma unroll
  for (unsigned k = 0; k < kGroups; ++k) {
    sizes = larger_of_two(sizes, sizes_of_two(groups[k].x));
    sizes = larger_of_two(sizes, sizes_of_two(groups[k].y));
    sizes = larger_of_two(sizes, sizes_of_two(groups[k].z));
    sizes = larger_of_two(sizes, sizes_of_two(groups[k].w));
  }
  const std::uint16_t largest = agree(sizes, here.largest);
  if (here.codes == nullptr) return;
  const CodeRule rule = fp8_rule(kRule, largest).codes;
#pragma unroll
  for (unsigned k = 0; k < kGroups; ++k) {
    const std::uint32_t row = first_row + k * kRowsAtOnce;
    if (!inside || row >= here.rows) continue;
    *reinterpret_cast<uint2*>(here.codes + row * here.stride + column) = {
        four_codes<kDivides>(groups[k].x, groups[k].y, rule),
        four_codes<kDivides>(groups[k].z, groups[k].w, rule)};
  }
}

template <QuantizeRule kRule>
__device__ void quantize_singly(const Meeting& here) {
  constexpr bool kDivides = kRule == QuantizeRule::kLinearDiv;
  constexpr unsigned kRows = kThreads / kQuantizeBlock;
  const auto* const weights = reinterpret_cast<const std::uint16_t*>(here.weights);
  const std::uint32_t column = threadIdx.x % kQuantizeBlock;
  const std::uint32_t first_row = threadIdx.x / kQuantizeBlock;
  const std::uint32_t end = column < here.columns ? here.rows : 0;
  std::uint32_t sizes = 0;
  for (std::uint32_t row = first_row; row < end; row += kRows) {
    sizes = larger_of_two(sizes, size_of_bf16(weights[row * here.stride + column]));
  }
  const std::uint16_t largest = agree(sizes, here.largest);
  if (here.codes == nullptr) return;
  const CodeRule rule = fp8_rule(kRule, largest).codes;
  for (std::uint32_t row = first_row; row < end; row += kRows) {
    const std::uint64_t at = row * here.stride + column;
    here.codes[at] = static_cast<std::byte>(four_codes<kDivides>(weights[at], 0, rule) & 0xffU);
  }
}

// The most thread blocks per multiprocessor that leave each thread the registers that it needs.
constexpr unsigned blocks_per_processor(QuantizeRule rule) {
  return rule == QuantizeRule::kLinear ? 4 : 3;
}

template <QuantizeRule kRule>
__global__ void __launch_bounds__(kThreads, blocks_per_processor(kRule))
    quantize_each_block(SpanTable<Item> table) {
  const Item& item = table.items[table.span_item[blockIdx.x]];
  const Meeting here = meeting_of(item, blockIdx.x - item.first_block);
  if (item.grouped) {
    quantize_groups<kRule>(here);
  } else {
    quantize_singly<kRule>(here);
  }
}

std::uint64_t blocks_of(const MatrixPart& part) { return part.blocks_high() * part.blocks_wide(); }

std::uint64_t blocks_of(std::span<const QuantizePart> parts) {
  std::uint64_t blocks = 0;
  for (const QuantizePart& each : parts) blocks += blocks_of(each.part);
  return blocks;
}

// Whether all blocks can be read and written in groups. If the first weight's column is a multiple
// of kGroup, so are the beginnings of all later blocks.
bool in_groups(const QuantizePart& of) {
  const MatrixPart& part = of.part;
  const std::uint64_t extents = part.stride | part.columns | part.column;
  const std::uint64_t addresses = reinterpret_cast<std::uintptr_t>(of.weights_dev) |
                                  2 * reinterpret_cast<std::uintptr_t>(of.codes_dev);
  return extents % kGroup == 0 && addresses % 16 == 0;
}

}  // namespace

WorkspaceSize quantize_workspace_size(std::span<const QuantizePart> parts) {
  return span_table_size<Item>(parts.size(), blocks_of(parts));
}

Status quantize(QuantizeRule rule, std::span<const QuantizePart> parts, const Workspace& workspace,
                Stream stream) {
  const std::uint64_t blocks = blocks_of(parts);
  if (blocks == 0) return {};
  if (blocks >= (std::uint64_t{1} << 31)) {
    return error(StatusCode::kInvalidArgument, "quantizing ", blocks,
                 " blocks at once: cut the batch in two");
  }
  DRIFTLESS_RETURN_IF_ERROR(place_spans<Item>(
      parts, blocks, workspace, "placing the table of quantized blocks", stream,
      [](const QuantizePart& of, std::uint32_t first) {
        const auto wide = static_cast<std::uint32_t>(of.part.blocks_wide());
        return std::tuple(Item{of, first, wide, in_groups(of)}, blocks_of(of.part));
      }));
  const SpanTable<Item> table = carve_spans<Item>(workspace.dev, parts.size(), blocks);
  const auto kernel = rule == QuantizeRule::kLinear ? quantize_each_block<QuantizeRule::kLinear>
                      : rule == QuantizeRule::kLinearDiv
                          ? quantize_each_block<QuantizeRule::kLinearDiv>
                          : quantize_each_block<QuantizeRule::kUe8m0>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(table);
  return check_launch("quantize_each_block");
}

}  // namespace driftless::cuda
