// Compiled once per SIMD target: see operations.h before adding an include.
#include DRIFTLESS_SIMD_HEADER

#include "kernels/cpu/operations.h"

namespace driftless::cpu::DRIFTLESS_SIMD_TARGET {
namespace {

template <unsigned kUnit>
inline void copy_unit(unsigned char* to, const unsigned char* from) {
  __builtin_memcpy(to, from, kUnit);
}

// Where the next results go.
template <unsigned kUnit>
struct Output {
  std::uint32_t* offsets;
  unsigned char* values;
  std::uint32_t count = 0;

  void put(std::uint32_t at, const unsigned char* units) {
    offsets[count] = at;
    copy_unit<kUnit>(values + std::uint64_t{count} * kUnit, units + std::uint64_t{at} * kUnit);
  }
  void put_all64(std::uint32_t first, const unsigned char* units) {
    store_iota64(offsets + count, first);
    __builtin_memcpy(values + std::uint64_t{count} * kUnit, units + std::uint64_t{first} * kUnit,
                     64 * kUnit);
    count += 64;
  }
  // Whether there is a first and a second change is a coin toss that no branch predictor wins, so
  // both are written always, into the slack if need be, and only a third one is a branch.
  void put_some(std::uint32_t first, std::uint64_t bits, const unsigned char* units) {
    constexpr std::uint64_t kStop = std::uint64_t{1} << 63;  // keeps the count of zeros defined
    const auto changes = static_cast<std::uint32_t>(__builtin_popcountll(bits));
    const std::uint32_t end = count + changes;
    put(first + static_cast<std::uint32_t>(__builtin_ctzll(bits | kStop)), units);
    bits &= bits - 1;
    ++count;
    put(first + static_cast<std::uint32_t>(__builtin_ctzll(bits | kStop)), units);
    if (__builtin_expect(changes > 2, 0)) {
      for (bits &= bits - 1; bits != 0; bits &= bits - 1) {
        ++count;
        put(first + static_cast<std::uint32_t>(__builtin_ctzll(bits)), units);
      }
    }
    count = end;
  }
};

template <unsigned kUnit>
std::uint32_t diff_units(const unsigned char* before, const unsigned char* after,
                         std::uint32_t count, std::uint32_t* offsets, unsigned char* values) {
  Output<kUnit> output{offsets, values};
  std::uint32_t i = 0;
  for (; count - i >= 64; i += 64) {
    const std::uint64_t at = std::uint64_t{i} * kUnit;
    const std::uint64_t bits = differing64<kUnit>(before + at, after + at);
    if (__builtin_expect(bits == ~std::uint64_t{0}, 0)) {
      output.put_all64(i, after);
    } else {
      output.put_some(i, bits, after);
    }
  }
  for (; i < count; ++i) {
    const std::uint64_t at = std::uint64_t{i} * kUnit;
    if (__builtin_memcmp(before + at, after + at, kUnit) == 0) continue;
    output.put(i, after);
    ++output.count;
  }
  return output.count;
}

}  // namespace

std::uint32_t diff(const void* old_units, const void* new_units, std::uint32_t count,
                   unsigned unit_bytes, std::uint32_t* offsets, void* values) {
  const auto* before = static_cast<const unsigned char*>(old_units);
  const auto* after = static_cast<const unsigned char*>(new_units);
  auto* out = static_cast<unsigned char*>(values);
  switch (unit_bytes) {
    case 1: return diff_units<1>(before, after, count, offsets, out);
    case 2: return diff_units<2>(before, after, count, offsets, out);
    case 4: return diff_units<4>(before, after, count, offsets, out);
    default: return diff_units<8>(before, after, count, offsets, out);
  }
}

}  // namespace driftless::cpu::DRIFTLESS_SIMD_TARGET
