// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the digest (core/digest.h) in device code.
//
// A warp writes sums of field elements as two halves of at most 32 bits, with plain atomic
// additions: 2^32 warps fit, and digest_from_sums() folds the sums once on the host.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

inline constexpr unsigned kDigestWarps = 8;  // per block

struct PlaceKeys {
  // By digest lane and half; a lane of the warp reads four places at once.
  std::uint32_t half[2 * kDigestLanes][kDigestBlockWords];
};

__device__ __forceinline__ void fill_place_keys(PlaceKeys& keys) {
  for (unsigned i = threadIdx.x; i < kDigestLanes * kDigestBlockWords; i += blockDim.x) {
    const unsigned lane = i / kDigestBlockWords, place = i % kDigestBlockWords;
    const std::uint64_t halves = digest_place_halves(lane, place);
    keys.half[2 * lane][place] = static_cast<std::uint32_t>(halves);
    keys.half[2 * lane + 1][place] = static_cast<std::uint32_t>(halves >> 32);
  }
  __syncthreads();
}

// A number below 2^61 + 8 that is congruent to x; for any x.
__device__ __forceinline__ std::uint64_t lazy_fold(std::uint64_t x) {
  return (x & kDigestPrime) + (x >> 61);
}

// a * b modulo p, lazily: both below 2^62; the result is below 2^61 + 2^3.
__device__ __forceinline__ std::uint64_t lazy_multiply(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t low = a * b, high = __umul64hi(a, b);
  return lazy_fold((low & kDigestPrime) + ((high << 3) | (low >> 61)));
}

// x * 2^28 modulo p, x below 2^61 + 8.
__device__ __forceinline__ std::uint64_t shift_28(std::uint64_t x) {
  x = digest_fold(x);
  return ((x << 28) & kDigestPrime) + (x >> 33);
}

__device__ __forceinline__ void add_sums(const std::uint64_t (&sums)[kDigestLanes],
                                         std::uint64_t* out) {
#pragma unroll
  for (unsigned lane = 0; lane < kDigestLanes; ++lane) {
    std::uint64_t sum = digest_fold(sums[lane]);
#pragma unroll
    for (unsigned step = 16; step > 0; step /= 2) {
      sum = digest_add(sum, __shfl_xor_sync(~0U, sum, step));
    }
    if (threadIdx.x % 32 == 0 && sum != 0) {
      auto* const halves = reinterpret_cast<unsigned long long*>(out) + 2 * lane;
      atomicAdd(halves, sum & 0xffffffffU);
      atomicAdd(halves + 1, sum >> 32);
    }
  }
}

__device__ __forceinline__ std::uint64_t wide(std::uint32_t a, std::uint32_t b) {
  return std::uint64_t{a} * b;
}

// Adds the four words of one 16-byte load, multiplied by the keys of their places.
__device__ __forceinline__ void add_group(const PlaceKeys& keys, unsigned group, const uint4& words,
                                          std::uint64_t (&sums)[2 * kDigestLanes]) {
#pragma unroll
  for (unsigned half = 0; half < 2 * kDigestLanes; ++half) {
    const uint4 key = reinterpret_cast<const uint4*>(keys.half[half])[group];
    sums[half] +=
        wide(words.x, key.x) + wide(words.y, key.y) + wide(words.z, key.z) + wide(words.w, key.w);
  }
}

__device__ __forceinline__ void add_block(const std::uint64_t (&totals)[2 * kDigestLanes],
                                          const std::uint64_t (&block_keys)[kDigestLanes],
                                          std::uint64_t (&sums)[kDigestLanes]) {
#pragma unroll
  for (unsigned lane = 0; lane < kDigestLanes; ++lane) {
    const std::uint64_t value =
        lazy_fold(lazy_fold(totals[2 * lane]) + shift_28(lazy_fold(totals[2 * lane + 1])));
    sums[lane] = lazy_fold(sums[lane] + lazy_multiply(value, block_keys[lane]));
  }
}

// Adds the contribution of a change of one word from `before` to `after`.
__device__ __forceinline__ void add_step(const DigestTensorKey& key, std::uint64_t word,
                                         std::uint32_t before, std::uint32_t after,
                                         std::uint64_t (&sums)[kDigestLanes]) {
  const std::uint64_t step = digest_subtract(after, before);
#pragma unroll
  for (unsigned lane = 0; lane < kDigestLanes; ++lane) {
    const std::uint64_t halves = digest_place_halves(lane, word % kDigestBlockWords);
    const std::uint64_t place = (halves & 0xffffffffU) + ((halves >> 32) << 28);
    const std::uint64_t block = digest_block_key(key, word / kDigestBlockWords, lane);
    const std::uint64_t term = lazy_multiply(lazy_multiply(place, step), block);
    sums[lane] = lazy_fold(sums[lane] + term);
  }
}

template <unsigned W>
__device__ __forceinline__ void add_unit(const DigestTensorKey& key, std::uint64_t at,
                                         std::uint64_t before, std::uint64_t after,
                                         std::uint64_t (&sums)[kDigestLanes]) {
  if constexpr (W == 8) {
    add_step(key, 2 * at, static_cast<std::uint32_t>(before), static_cast<std::uint32_t>(after),
             sums);
    add_step(key, 2 * at + 1, static_cast<std::uint32_t>(before >> 32),
             static_cast<std::uint32_t>(after >> 32), sums);
  } else {
    const unsigned shift = static_cast<unsigned>(at * W % 4) * 8;
    add_step(key, at * W / 4, static_cast<std::uint32_t>(before << shift),
             static_cast<std::uint32_t>(after << shift), sums);
  }
}

inline Status clear_sums(std::uint64_t* sums_dev, std::uint64_t digests, Stream stream) {
  return check(
      cudaMemsetAsync(sums_dev, 0, digests * kDigestSums * sizeof(std::uint64_t), native(stream)),
      "clearing the sums of a digest");
}

}  // namespace driftless::cuda
