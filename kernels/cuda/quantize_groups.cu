// SPDX-License-Identifier: Apache-2.0
// Each thread makes one word of eight codes. The threads of a group adjoin in a warp, and agree on
// its largest magnitude.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize.h"
#include "kernels/fp8_words.h"
#include "kernels/value_cast.h"

namespace driftless::cuda {
namespace {

constexpr unsigned kThreads = 256;
// As on the host (kernels/cpu/quantize_groups.cpp): floats near this number are 1 apart, so adding
// it rounds, and leaves the code in the lowest bits. A code is stored plus 8.
constexpr float kRounds = 12582912;
constexpr std::uint32_t kCodeBits = 15, kStoredPlus = 8;

__device__ __forceinline__ std::uint32_t int4_code(std::uint32_t f32_bits, float scale) {
  const float value = __fdiv_rn(__uint_as_float(f32_bits), scale);
  if (is_nan_f32(__float_as_uint(value))) return kStoredPlus;  // code 0
  return (__float_as_uint(__fadd_rn(value, kRounds)) & kCodeBits) ^ kStoredPlus;
}

// The codes of the two weights of a word; the first one is in the lower bits.
__device__ __forceinline__ std::uint32_t two_codes(std::uint32_t weights, float scale) {
  return int4_code(weights << 16, scale) | int4_code(weights & 0xffff0000U, scale) << 4;
}

__device__ __forceinline__ uint4 read_eight(const std::uint16_t* weights, bool aligned) {
  if (aligned) return __ldcs(reinterpret_cast<const uint4*>(weights));
  const auto two = [&](unsigned at) { return weights[at] | std::uint32_t{weights[at + 1]} << 16; };
  return {two(0), two(2), two(4), two(6)};
}

template <unsigned kGroup>
__global__ void __launch_bounds__(kThreads)
    quantize_each_group(const std::uint16_t* weights, bool aligned, std::uint64_t words,
                        std::uint32_t* packed, std::uint16_t* scales) {
  constexpr unsigned kWords = kGroup / kInt4InWord;
  static_assert(32 % kWords == 0, "a group lies in one warp");
  const std::uint64_t word = std::uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool inside = word < words;
  uint4 eight{0, 0, 0, 0};
  if (inside) eight = read_eight(weights + word * kInt4InWord, aligned);
  std::uint32_t sizes = larger_of_two(larger_of_two(sizes_of_two(eight.x), sizes_of_two(eight.y)),
                                      larger_of_two(sizes_of_two(eight.z), sizes_of_two(eight.w)));
  for (unsigned step = kWords / 2; step != 0; step /= 2) {
    sizes = larger_of_two(sizes, __shfl_xor_sync(~0U, sizes, step));
  }
  if (!inside) return;
  const float least = 1e-5F;
  const float wanted = __fmul_rn(__uint_as_float(f32_of_bf16(larger_half(sizes))), 1.0F / 7.0F);
  const float scale = wanted < least ? least : wanted;
  packed[word] = two_codes(eight.x, scale) | two_codes(eight.y, scale) << 8 |
                 two_codes(eight.z, scale) << 16 | two_codes(eight.w, scale) << 24;
  if (word % kWords == 0) scales[word / kWords] = bf16_of_f32(__float_as_uint(scale));
}

}  // namespace

Status quantize_groups(unsigned group, std::uint64_t groups, const std::byte* weights_dev,
                       std::byte* packed_dev, std::byte* scales_dev, Stream stream) {
  if (groups == 0) return {};
  const std::uint64_t words = groups * (group / kInt4InWord);
  const std::uint64_t blocks = (words + kThreads - 1) / kThreads;
  if (!is_int4_group(group) || blocks >= (std::uint64_t{1} << 31)) {
    return error(StatusCode::kInvalidArgument, "quantizing ", groups, " groups of ", group,
                 " weights at once: groups have 32 or 128, and a call takes 2^39 codes");
  }
  const auto kernel = group == 32 ? quantize_each_group<32> : quantize_each_group<128>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, native(stream)>>>(
      reinterpret_cast<const std::uint16_t*>(weights_dev),
      reinterpret_cast<std::uintptr_t>(weights_dev) % sizeof(uint4) == 0, words,
      reinterpret_cast<std::uint32_t*>(packed_dev), reinterpret_cast<std::uint16_t*>(scales_dev));
  return check_launch("quantize_each_group");
}

}  // namespace driftless::cuda
