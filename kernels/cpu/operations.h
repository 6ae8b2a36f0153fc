// SPDX-License-Identifier: Apache-2.0
// The operations on the host. Contracts: host_kernels.h.
//
// gather and scatter, plain and strided, access memory at random, where SIMD does not help: they
// are compiled once, for the baseline (baseline.h). The operations here are compiled once for each
// SIMD target, each time into a separate namespace (CMakeLists.txt lists targets and flags). They
// must not instantiate code of the standard library: the linker keeps one copy of an inline
// function, and that copy could contain instructions that this processor lacks. So this header and
// its sources use only integers, pointers, and fp8_code.h, which keeps the same rule.
#pragma once

#include <cstdint>

#include "kernels/fp8_code.h"

namespace driftless::cpu {

// The exact sum of up to 1024 products below 2^60, as low + high * 2^32.
struct WideSum {
  std::uint64_t low, high;
};
inline constexpr unsigned kDigestKeyStreams = 4;

// The keys of one 16-bit half of a word of a block, for both lanes: place_key * 2^(16 * half) mod
// p. A key is split into two limbs, its low 31 bits and the 30 above them, so that sums fit 64
// bits: a change of a unit has 17 bits with its sign, and a block has at most 2^12 changes.
struct alignas(16) HalfKeys {
  std::int32_t limbs[4];  // low, high of lane 0; low, high of lane 1
};
inline constexpr std::uint64_t kDigestBlockHalves = 2048;

// Changed units of 1 or 2 bytes, ascending; the first `done` are already summed.
struct UnitChanges {
  unsigned unit_bytes;
  std::uint64_t origin;
  const std::uint32_t* offsets;
  std::uint64_t count;
  const unsigned char* old_values;
  const unsigned char* new_values;
  unsigned char* units;  // where unit `origin` lies; null: nothing is written
  std::uint64_t done;
};

// The contribution of the changes in one block to the digest, without the block's key.
struct BlockSteps {
  std::uint64_t block;
  std::int64_t sums[4];  // in the order of the limbs
};

// Hazards (core/compact.h) are summed for groups of this many units.
inline constexpr std::uint32_t kHazardGroup = 16;
struct HazardTable {
  const std::uint16_t* hazards;      // by class
  unsigned unit_bytes, shift, mask;  // class = (unit >> shift) & mask
  unsigned first, end;               // range of classes that have hazards
};

// A copy of adjacent blocks. In the matrix, rows may lie a power of two apart, and then evict each
// other from the cache.
inline constexpr unsigned kStripBlocks = 4;
struct alignas(64) Strip {
  unsigned char rows[128][kStripBlocks * 128 * 2];  // bfloat16
};
#define DRIFTLESS_DECLARE_SIMD_TARGET(target)                                                      \
  namespace target {                                                                               \
  std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,            \
                     unsigned unit_bytes, std::uint32_t* offsets, void* values, void* old_values); \
  std::uint64_t masked_overwrite(void* target_units, const void* source, std::uint64_t count,      \
                                 unsigned unit_bytes, std::uint64_t sentinel);                     \
  /* sums[s] = sum of words[i] * keys[s][i] over i < count <= 1024. `words` are 32-bit, at any */  \
  /* address; keys are below 2^28. */                                                              \
  void digest_sums(const void* words, std::uint32_t count,                                         \
                   const std::uint32_t* const keys[kDigestKeyStreams],                             \
                   WideSum sums[kDigestKeyStreams]);                                               \
  /* Sums the changes of the next blocks, at most `max_blocks`, and returns the number of these */ \
  /* blocks. `keys` has all kDigestBlockHalves. */                                                 \
  unsigned digest_steps(UnitChanges& changes, const HalfKeys* keys, BlockSteps* blocks,            \
                        unsigned max_blocks);                                                      \
  /* sums[g] = the sum of the hazards of all units before group g. There are `groups` */           \
  /* groups, all of them whole; sums[groups] = the sum over all of their units. */                 \
  /* Every sum is below 2^32. */                                                                   \
  void hazard_sums(const HazardTable& table, const void* units, std::uint32_t groups,              \
                   std::uint32_t* sums);                                                           \
  /* Copies rows and columns of a matrix of bfloat16 that has `stride` columns, and finds the */   \
  /* largest magnitude of each block, as its bits; NaNs aside. */                                  \
  void largest_bf16(const void* weights, std::uint32_t rows, std::uint32_t columns,                \
                    std::uint64_t stride, Strip& strip, std::uint16_t* largest);                   \
  /* The codes, by a rule for each block, into the same place of a matrix of bytes. */             \
  void codes_of_bf16(const CodeRule* rules, const Strip& strip, std::uint32_t rows,                \
                     std::uint32_t columns, std::uint64_t stride, void* codes);                    \
  }

DRIFTLESS_DECLARE_SIMD_TARGET(portable)
DRIFTLESS_DECLARE_SIMD_TARGET(neon)
DRIFTLESS_DECLARE_SIMD_TARGET(avx2)
#undef DRIFTLESS_DECLARE_SIMD_TARGET

}  // namespace driftless::cpu
