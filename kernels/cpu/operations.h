// The operations for processors. Contracts: host_kernels.h.
//
// gather, scatter and digest_change jump about in memory, where SIMD does not help: they are
// compiled once, for the baseline. The others are compiled once per SIMD target, each into a
// namespace of its own (CMakeLists.txt says which, with which flags). No code of the standard
// library may be instantiated there: the linker keeps one copy of an inline function, and that copy
// could hold instructions that this processor does not have. So this header and the sources behind
// it take nothing but integers and pointers.
#pragma once

#include <cstdint>

namespace driftless::cpu {

// The exact sum of up to 1024 products below 2^60: low + high * 2^32.
struct WideSum {
  std::uint64_t low, high;
};
inline constexpr unsigned kDigestKeyStreams = 4;

#define DRIFTLESS_DECLARE_SIMD_TARGET(target)                                                     \
  namespace target {                                                                              \
  std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,           \
                     unsigned unit_bytes, std::uint32_t* offsets, void* values);                  \
  std::uint64_t masked_overwrite(void* target_units, const void* source, std::uint64_t count,     \
                                 unsigned unit_bytes, std::uint64_t sentinel);                    \
  /* sums[s] = sum of words[i] * keys[s][i] over i < count <= 1024. `words` are 32-bit, at any */ \
  /* address; keys are below 2^28. */                                                             \
  void digest_sums(const void* words, std::uint32_t count,                                        \
                   const std::uint32_t* const keys[kDigestKeyStreams],                            \
                   WideSum sums[kDigestKeyStreams]);                                              \
  }

DRIFTLESS_DECLARE_SIMD_TARGET(portable)
DRIFTLESS_DECLARE_SIMD_TARGET(neon)
DRIFTLESS_DECLARE_SIMD_TARGET(sse2)
DRIFTLESS_DECLARE_SIMD_TARGET(avx2)
#undef DRIFTLESS_DECLARE_SIMD_TARGET

void gather(const void* units, unsigned unit_bytes, const std::uint32_t* offsets,
            std::uint64_t count, void* values);
void scatter(void* units, unsigned unit_bytes, const std::uint32_t* offsets, std::uint64_t count,
             const void* values);

}  // namespace driftless::cpu
