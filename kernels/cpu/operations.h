// SPDX-License-Identifier: Apache-2.0
// The operations for processors. Contracts: host_kernels.h.
//
// gather and scatter, plain and strided, jump about in memory, where SIMD does not help: they are
// compiled once, for the baseline (baseline.h). Those here are compiled once per SIMD target, each
// into a namespace of its own (CMakeLists.txt says which, with which flags). No code of the
// standard library may be instantiated there: the linker keeps one copy of an inline function, and
// that copy could hold instructions that this processor does not have. So this header and the
// sources behind them take nothing but integers and pointers, and fp8_code.h, which is no
// different.
#pragma once

#include <cstdint>

#include "kernels/fp8_code.h"

namespace driftless::cpu {

// The exact sum of up to 1024 products below 2^60: low + high * 2^32.
struct WideSum {
  std::uint64_t low, high;
};
inline constexpr unsigned kDigestKeyStreams = 4;

// The keys of one 16-bit half of a word of a block, both lanes: place_key * 2^(16 * half) mod p,
// cut into the low 31 bits and the 30 above them. Times a step of a unit that is 17 bits with its
// sign, 2^12 of them: all of a block's changes fit a 64-bit sum.
struct alignas(16) HalfKeys {
  std::int32_t limbs[4];  // low, high of lane 0; low, high of lane 1
};
inline constexpr std::uint64_t kDigestBlockHalves = 2048;

// Units of 1 or 2 bytes that change, ascending; `done` of them are summed already.
struct UnitChanges {
  unsigned unit_bytes;
  std::uint64_t origin;
  const std::uint32_t* offsets;
  std::uint64_t count;
  const unsigned char* old_values;
  const unsigned char* new_values;
  unsigned char* units;  // unit `origin`; takes the new values unless it is null
  std::uint64_t done;
};

// What the changes in one block add to the digest, without the block's key.
struct BlockSteps {
  std::uint64_t block;
  std::int64_t sums[4];  // as the limbs
};

// Hazards (core/compact.h) are summed up by groups of so many units.
inline constexpr std::uint32_t kHazardGroup = 16;
struct HazardTable {
  const std::uint16_t* hazards;      // by class
  unsigned unit_bytes, shift, mask;  // class = (unit >> shift) & mask
  unsigned first, end;               // classes that have one
};

// Blocks side by side, copied: what lies a power of two apart does not stay in a cache.
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
  /* Sums the changes of the next blocks, `max_blocks` at most; returns of how many. `keys` are */ \
  /* those of all kDigestBlockHalves. */                                                           \
  unsigned digest_steps(UnitChanges& changes, const HalfKeys* keys, BlockSteps* blocks,            \
                        unsigned max_blocks);                                                      \
  /* sums[g] = the hazards of all units before group g, of `groups` whole ones; sums[groups]: of   \
   */                                                                                              \
  /* all. Below 2^32. */                                                                           \
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
