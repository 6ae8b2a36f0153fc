// SPDX-License-Identifier: Apache-2.0
// Data for the tests of kernels: seeded numbers, patterns of change, and buffers with guards.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/strided_map.h"

namespace driftless::testing {

enum class Pattern {
  kNothing,
  kEverything,
  kFirst,
  kLast,
  kAlternating,
  kOnePercent,
  kHalf,
  kRuns
};
inline constexpr Pattern kAllPatterns[] = {
    Pattern::kNothing,     Pattern::kEverything, Pattern::kFirst, Pattern::kLast,
    Pattern::kAlternating, Pattern::kOnePercent, Pattern::kHalf,  Pattern::kRuns};
inline constexpr unsigned kWidths[] = {1, 2, 4, 8};

// Bytes between guards, starting `shift` bytes past an address divisible by 64.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::size_t size, std::size_t shift = 0)
      : size_(size), storage_(size + 4 * kGuard, kFill) {
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    start_ = kGuard + (64 - address % 64) % 64 + shift;
  }
  [[nodiscard]] std::byte* data() { return storage_.data() + start_; }
  [[nodiscard]] const std::byte* data() const { return storage_.data() + start_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  // Whether nothing was written before the bytes, nor `allowed` bytes past their end.
  [[nodiscard]] bool intact(std::size_t allowed = 0) const {
    for (std::size_t i = 0; i < storage_.size(); ++i) {
      const bool inside = i >= start_ && i < start_ + size_ + allowed;
      if (!inside && storage_[i] != kFill) return false;
    }
    return true;
  }
  [[nodiscard]] std::vector<std::byte> copy() const { return {data(), data() + size_}; }

 private:
  static constexpr std::size_t kGuard = 512;
  static constexpr std::byte kFill{0xa5};
  std::size_t size_;
  std::vector<std::byte> storage_;
  std::size_t start_ = 0;
};

using Random = std::mt19937_64;

// Random bits, among them many units that a comparison of floating-point numbers would get wrong.
inline void fill_units(Random& random, unsigned width, std::byte* to, std::size_t units) {
  for (std::size_t i = 0; i < units; ++i) {
    const std::uint64_t sign = std::uint64_t{1} << (8 * width - 1);
    const std::uint64_t special[] = {0,        sign, sign | 1, 1, ~std::uint64_t{0},
                                     ~sign,  // a NaN for every IEEE type
                                     ~sign - 1};
    const std::uint64_t bits =
        random() % 4 == 0 ? special[random() % std::size(special)] : random();
    std::memcpy(to + i * width, &bits, width);
  }
}

inline bool changes(Random& random, Pattern pattern, std::size_t i, std::size_t units) {
  switch (pattern) {
    case Pattern::kNothing: return false;
    case Pattern::kEverything: return true;
    case Pattern::kFirst: return i == 0;
    case Pattern::kLast: return i + 1 == units;
    case Pattern::kAlternating: return i % 2 == 1;
    case Pattern::kOnePercent: return random() % 100 == 0;
    case Pattern::kHalf: return random() % 2 == 0;
    case Pattern::kRuns: return i / 150 % 2 == 0;
  }
  return false;
}

// Flips at least one bit, anywhere, of the units that the pattern names.
inline void change_units(Random& random, Pattern pattern, unsigned width, std::byte* data,
                         std::size_t units) {
  for (std::size_t i = 0; i < units; ++i) {
    if (!changes(random, pattern, i, units)) continue;
    std::uint64_t bits = 0;
    std::memcpy(&bits, data + i * width, width);
    bits ^= std::uint64_t{1} << (random() % (8 * width));
    std::memcpy(data + i * width, &bits, width);
  }
}

inline std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t size) {
  Random random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

struct StridedCase {
  const char* name;
  std::uint64_t source_units, target_units;
  StridedView source, target;
};

inline StridedMap map_of(const StridedCase& each) {
  auto map = StridedMap::make(each.source, each.source_units, each.target, each.target_units);
  EXPECT_TRUE(map.ok()) << each.name << ": " << map.status().to_string();
  return map.ok() ? *map : StridedMap{};
}

inline std::string test_name(std::string_view kernels_name) {
  std::string name(kernels_name);
  for (char& c : name) c = c == '/' ? '_' : c;
  return name;
}

}  // namespace driftless::testing
