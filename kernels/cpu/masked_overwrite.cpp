// SPDX-License-Identifier: Apache-2.0
// Compiled once per SIMD target: see operations.h before adding an include.
#include DRIFTLESS_SIMD_HEADER

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

// Returns the number of units equal to the sentinel among the first `vectors` vectors.
template <unsigned kUnit>
std::uint64_t overwrite_vectors(unsigned char* target, const unsigned char* source,
                                std::uint64_t vectors, std::uint64_t sentinel) {
  const Vector keep = broadcast<kUnit>(sentinel);
  std::uint64_t kept_bytes = 0;
  for (std::uint64_t v = 0; v < vectors;) {
    // A byte counts to 255.
    const std::uint64_t end = vectors - v < 255 ? vectors : v + 255;
    Vector counts = zero();
    for (; v < end; ++v) {
      unsigned char* const at = target + v * kVectorBytes;
      const Vector incoming = load(source + v * kVectorBytes);
      const Vector kept = equal<kUnit>(incoming, keep);
      store(at, select(kept, load(at), incoming));
      counts = count_bytes(counts, kept);
    }
    kept_bytes += sum_bytes(counts);
  }
  return kept_bytes / kUnit;
}

template <unsigned kUnit>
std::uint64_t overwrite_units(unsigned char* target, const unsigned char* source,
                              std::uint64_t count, std::uint64_t sentinel) {
  constexpr unsigned kUnitsPerVector = kVectorBytes / kUnit;
  const std::uint64_t vectors = count / kUnitsPerVector;
  std::uint64_t written =
      vectors * kUnitsPerVector - overwrite_vectors<kUnit>(target, source, vectors, sentinel);
  for (std::uint64_t i = vectors * kUnitsPerVector; i < count; ++i) {
    if (__builtin_memcmp(source + i * kUnit, &sentinel, kUnit) == 0) continue;
    __builtin_memcpy(target + i * kUnit, source + i * kUnit, kUnit);
    ++written;
  }
  return written;
}

}  // namespace

std::uint64_t masked_overwrite(void* target_units, const void* source, std::uint64_t count,
                               unsigned unit_bytes, std::uint64_t sentinel) {
  auto* to = static_cast<unsigned char*>(target_units);
  const auto* from = static_cast<const unsigned char*>(source);
  switch (unit_bytes) {
    case 1: return overwrite_units<1>(to, from, count, sentinel);
    case 2: return overwrite_units<2>(to, from, count, sentinel);
    case 4: return overwrite_units<4>(to, from, count, sentinel);
    default: return overwrite_units<8>(to, from, count, sentinel);
  }
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
