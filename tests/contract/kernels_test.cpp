// SPDX-License-Identifier: Apache-2.0
// Every implementation of the host kernels gives the same results as reference/, bit for bit, and
// writes nothing else.
#include "kernels/host_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/kernels_data.h"
#include "support/kernels_under_test.h"

namespace driftless {
namespace {

using namespace driftless::testing;

class Kernels : public ::testing::TestWithParam<HostKernels> {
 protected:
  const HostKernels& kernels() const { return GetParam(); }
  const HostKernels& reference() const { return all_host_kernels().front(); }
};

struct Shifts {
  std::size_t old_units, new_units, values;
};

void expect_same_diff(const HostKernels& kernels, const HostKernels& reference, unsigned width,
                      std::uint32_t units, Pattern pattern, Shifts shifts) {
  SCOPED_TRACE(::testing::Message() << "width " << width << ", units " << units << ", pattern "
                                    << static_cast<int>(pattern));
  Random random(units * 31 + width);
  GuardedBytes before(std::size_t{units} * width, shifts.old_units);
  GuardedBytes after(std::size_t{units} * width, shifts.new_units);
  fill_units(random, width, before.data(), units);
  std::copy_n(before.data(), before.size(), after.data());
  change_units(random, pattern, width, after.data(), units);

  const std::size_t room = units + kDiffSlackUnits;
  std::vector<std::uint32_t> expected_offsets(room);
  std::vector<std::byte> expected_values(room * width), expected_old(room * width);
  const std::uint32_t expected =
      reference.diff(before.data(), after.data(), units, width, expected_offsets.data(),
                     expected_values.data(), expected_old.data());
  GuardedBytes offsets(room * sizeof(std::uint32_t));
  GuardedBytes values(room * width, shifts.values), old_values(room * width, shifts.new_units);
  for (std::byte* const old_out : {static_cast<std::byte*>(nullptr), old_values.data()}) {
    const std::uint32_t found =
        kernels.diff(before.data(), after.data(), units, width,
                     reinterpret_cast<std::uint32_t*>(offsets.data()), values.data(), old_out);
    ASSERT_EQ(found, expected);
    const std::size_t size = std::size_t{found} * width;
    EXPECT_EQ(std::memcmp(offsets.data(), expected_offsets.data(), found * 4), 0);
    EXPECT_EQ(std::memcmp(values.data(), expected_values.data(), size), 0);
    if (old_out == nullptr) continue;
    EXPECT_EQ(std::memcmp(old_out, expected_old.data(), size), 0);
  }
  EXPECT_TRUE(offsets.intact());
  EXPECT_TRUE(values.intact());
  EXPECT_TRUE(old_values.intact());
}

TEST_P(Kernels, DiffFindsWhatReferenceFindsAtEveryShortLength) {
  for (const unsigned width : kWidths) {
    for (std::uint32_t units = 0; units <= 300; ++units) {
      for (const Pattern pattern : kAllPatterns) {
        const std::size_t turn = units + static_cast<std::size_t>(pattern);
        expect_same_diff(kernels(), reference(), width, units, pattern,
                         {turn % 17, turn * 7 % 19, turn * 5 % 13});
      }
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Kernels, DiffFindsWhatReferenceFindsInLongArrays) {
  for (const unsigned width : kWidths) {
    for (const std::uint32_t units : {4096U, 10007U, 65537U}) {
      for (const Pattern pattern : kAllPatterns) {
        expect_same_diff(kernels(), reference(), width, units, pattern, {1, 3, 5});
      }
    }
  }
}

TEST_P(Kernels, DiffWritesNoFurtherThanTheSlackPastItsResults) {
  for (const unsigned width : kWidths) {
    const std::uint32_t units = 640;
    std::vector<std::byte> before(units * width), after(units * width);
    Random random(width);
    change_units(random, Pattern::kAlternating, width, after.data(), units);
    GuardedBytes offsets(units / 2 * sizeof(std::uint32_t)), values(units / 2 * width),
        old_values(units / 2 * width);
    ASSERT_EQ(kernels().diff(before.data(), after.data(), units, width,
                             reinterpret_cast<std::uint32_t*>(offsets.data()), values.data(),
                             old_values.data()),
              units / 2);
    EXPECT_TRUE(offsets.intact(kDiffSlackUnits * sizeof(std::uint32_t)));
    EXPECT_TRUE(values.intact(std::size_t{kDiffSlackUnits} * width));
    EXPECT_TRUE(old_values.intact(std::size_t{kDiffSlackUnits} * width));
  }
}

TEST_P(Kernels, DiffComparesBitsNotNumbers) {
  const auto differs = [&](std::uint64_t a, std::uint64_t b, unsigned width) {
    std::uint32_t offsets[1 + kDiffSlackUnits];
    std::uint64_t values[1 + kDiffSlackUnits];
    return kernels().diff(&a, &b, 1, width, offsets, values, nullptr) == 1;
  };
  for (const unsigned width : {2U, 4U, 8U}) {
    const std::uint64_t sign = std::uint64_t{1} << (8 * width - 1);
    EXPECT_TRUE(differs(0, sign, width)) << "-0 is not +0";
    EXPECT_TRUE(differs(sign - 1, sign - 2, width)) << "NaN payloads count";
    EXPECT_FALSE(differs(sign - 1, sign - 1, width)) << "a NaN equals its own bits";
    EXPECT_TRUE(differs(1, 2, width)) << "denormals are not flushed to zero";
  }
}

// New values for a weight of 2 bytes: near it, so that it does not change; ties, both ways; the
// ends of the ranges of both types; denormals; infinities; NaNs of any payload.
std::uint32_t new_f32(Random& random, ValueCast cast, std::uint16_t old_bits) {
  constexpr std::uint32_t kEdges[] = {
      0,           0x80000000U, 1,           0x80000001U, 0x007fffffU, 0x7f7fffffU, 0x7f7f8000U,
      0x7f800000U, 0xff800000U, 0x7f800001U, 0xffc12345U, 0x7fffffffU, 0x33000000U, 0x33000001U,
      0x387fe000U, 0x387ff000U, 0x477fe000U, 0x477fefffU, 0x477ff000U, 0xc77ff000U};
  const std::uint32_t wide =
      cast == ValueCast::kF32ToBF16 ? f32_of_bf16(old_bits) : f32_of_f16(old_bits);
  const std::uint32_t half = cast == ValueCast::kF32ToBF16 ? 0x8000U : 0x1000U;
  switch (random() % 8) {
    case 0: return kEdges[random() % std::size(kEdges)];
    case 1: return static_cast<std::uint32_t>(random());
    case 2: return wide + half;
    case 3: return wide + half + 1;
    case 4: return wide - half;
    default: return wide + static_cast<std::uint32_t>(random() % half);
  }
}

TEST_P(Kernels, DiffCastFindsWhatReferenceFinds) {
  for (const ValueCast cast : {ValueCast::kF32ToBF16, ValueCast::kF32ToF16}) {
    for (const std::uint32_t units :
         {0U, 1U, 63U, 64U, 65U, 300U, 2047U, 2048U, 2049U, 4133U, 65537U}) {
      SCOPED_TRACE(::testing::Message() << units << " units to type " << static_cast<int>(cast));
      Random random(units + 3);
      GuardedBytes before(std::size_t{units} * 2, units % 13 * 2);
      GuardedBytes after(std::size_t{units} * 4, units % 7 * 4);
      fill_units(random, 2, before.data(), units);
      for (std::uint32_t i = 0; i < units; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, before.data() + std::size_t{i} * 2, 2);
        const std::uint32_t value = new_f32(random, cast, bits);
        std::memcpy(after.data() + std::size_t{i} * 4, &value, 4);
      }
      const std::size_t room = units + kDiffSlackUnits;
      std::vector<std::uint32_t> expected_offsets(room);
      std::vector<std::byte> expected_values(room * 2), expected_old(room * 2);
      const std::uint32_t expected =
          reference().diff_cast(before.data(), after.data(), units, cast, expected_offsets.data(),
                                expected_values.data(), expected_old.data());
      GuardedBytes offsets(room * sizeof(std::uint32_t)), values(room * 2), old_values(room * 2);
      for (std::byte* const old_out : {static_cast<std::byte*>(nullptr), old_values.data()}) {
        ASSERT_EQ(kernels().diff_cast(before.data(), after.data(), units, cast,
                                      reinterpret_cast<std::uint32_t*>(offsets.data()),
                                      values.data(), old_out),
                  expected);
        EXPECT_EQ(std::memcmp(offsets.data(), expected_offsets.data(), expected * 4), 0);
        EXPECT_EQ(std::memcmp(values.data(), expected_values.data(), expected * 2), 0);
        if (old_out == nullptr) continue;
        EXPECT_EQ(std::memcmp(old_out, expected_old.data(), expected * 2), 0);
      }
      EXPECT_TRUE(offsets.intact() && values.intact() && old_values.intact());
    }
  }
}

// Rounds as torch's copy_() does: to nearest, ties to even; a NaN becomes the quiet one.
TEST_P(Kernels, DiffCastRoundsAsTorchDoes) {
  const auto converted = [&](std::uint32_t value, ValueCast cast) {
    const std::uint16_t before = 0x1234;
    std::uint32_t offsets[1 + kDiffSlackUnits];
    std::uint16_t values[1 + kDiffSlackUnits] = {before};
    kernels().diff_cast(&before, &value, 1, cast, offsets, values, nullptr);
    return values[0];
  };
  for (const auto& [from, to] : {std::pair{0x3f808000U, 0x3f80}, std::pair{0x3f818000U, 0x3f82},
                                 std::pair{0x3f808001U, 0x3f81}, std::pair{0x7f7fffffU, 0x7f80},
                                 std::pair{0x80000000U, 0x8000}, std::pair{0x00008001U, 0x0001},
                                 std::pair{0xff800001U, 0x7fc0}}) {
    EXPECT_EQ(converted(from, ValueCast::kF32ToBF16), to) << std::hex << from;
  }
  for (const auto& [from, to] : {std::pair{0x3f801000U, 0x3c00}, std::pair{0x3f803000U, 0x3c02},
                                 std::pair{0x477ff000U, 0x7c00}, std::pair{0x477fefffU, 0x7bff},
                                 std::pair{0x33000001U, 0x0001}, std::pair{0xff800001U, 0xfe00}}) {
    EXPECT_EQ(converted(from, ValueCast::kF32ToF16), to) << std::hex << from;
  }
}

std::vector<std::uint32_t> some_offsets(Random& random, std::uint32_t units, Pattern pattern) {
  std::vector<std::uint32_t> offsets;
  for (std::uint32_t i = 0; i < units; ++i) {
    if (changes(random, pattern, i, units)) offsets.push_back(i);
  }
  return offsets;
}

TEST_P(Kernels, GatherAndScatterMoveWhatReferenceMoves) {
  for (const unsigned width : kWidths) {
    for (const std::uint32_t units : {1U, 2U, 47U, 48U, 49U, 50U, 300U, 10007U}) {
      for (const Pattern pattern : kAllPatterns) {
        Random random(units + width);
        const std::vector<std::uint32_t> offsets = some_offsets(random, units, pattern);
        GuardedBytes source(std::size_t{units} * width, 1), target(std::size_t{units} * width, 3);
        fill_units(random, width, source.data(), units);
        fill_units(random, width, target.data(), units);

        GuardedBytes values(offsets.size() * width, 5), expected(offsets.size() * width);
        kernels().gather(source.data(), width, offsets.data(), offsets.size(), values.data());
        reference().gather(source.data(), width, offsets.data(), offsets.size(), expected.data());
        EXPECT_EQ(values.copy(), expected.copy());
        EXPECT_TRUE(values.intact());

        GuardedBytes expected_target(target.size());
        std::copy_n(target.data(), target.size(), expected_target.data());
        kernels().scatter(target.data(), width, offsets.data(), offsets.size(), values.data());
        reference().scatter(expected_target.data(), width, offsets.data(), offsets.size(),
                            values.data());
        EXPECT_EQ(target.copy(), expected_target.copy());
        EXPECT_TRUE(target.intact());
      }
    }
  }
}

TEST_P(Kernels, ScatterOfADiffMakesTheNewArray) {
  for (const unsigned width : kWidths) {
    const std::uint32_t units = 20011;
    Random random(width);
    std::vector<std::byte> before(units * width);
    fill_units(random, width, before.data(), units);
    std::vector<std::byte> after = before;
    change_units(random, Pattern::kOnePercent, width, after.data(), units);
    std::vector<std::uint32_t> offsets(units + kDiffSlackUnits);
    std::vector<std::byte> values(offsets.size() * width);
    const std::uint32_t found = kernels().diff(before.data(), after.data(), units, width,
                                               offsets.data(), values.data(), nullptr);
    ASSERT_GT(found, 0U);
    kernels().scatter(before.data(), width, offsets.data(), found, values.data());
    EXPECT_EQ(before, after);
  }
}

void expect_same_overwrite(const HostKernels& kernels, const HostKernels& reference, unsigned width,
                           std::uint32_t units, Pattern pattern, std::size_t shift) {
  SCOPED_TRACE(::testing::Message() << "width " << width << ", units " << units << ", pattern "
                                    << static_cast<int>(pattern));
  Random random(units * 3 + width);
  // An implementation must ignore bits above the unit's width.
  const std::uint64_t sentinel = 0xfedcba987654ffc1ULL;
  GuardedBytes source(std::size_t{units} * width, shift);
  GuardedBytes target(source.size(), shift * 3 % 16), expected(source.size());
  fill_units(random, width, source.data(), units);
  fill_units(random, width, target.data(), units);
  for (std::size_t i = 0; i < units; ++i) {
    if (changes(random, pattern, i, units)) {
      std::memcpy(source.data() + i * width, &sentinel, width);
    }
  }
  std::copy_n(target.data(), target.size(), expected.data());
  const std::uint64_t written =
      reference.masked_overwrite(expected.data(), source.data(), units, width, sentinel);
  EXPECT_EQ(kernels.masked_overwrite(target.data(), source.data(), units, width, sentinel),
            written);
  EXPECT_EQ(target.copy(), expected.copy());
  EXPECT_TRUE(target.intact());
}

TEST_P(Kernels, MaskedOverwriteWritesWhatReferenceWrites) {
  for (const unsigned width : kWidths) {
    for (std::uint32_t units = 0; units <= 300; ++units) {
      for (const Pattern pattern : kAllPatterns) {
        expect_same_overwrite(kernels(), reference(), width, units, pattern, units % 16);
      }
    }
    for (const Pattern pattern : kAllPatterns) {
      expect_same_overwrite(kernels(), reference(), width, 100003, pattern, 7);
    }
  }
}

TEST(HostKernelsList, StartsWithReferenceAndNamesEveryOneOnce) {
  const auto all = all_host_kernels();
  ASSERT_GE(all.size(), 2U);
  EXPECT_EQ(all.front().name, "reference");
  EXPECT_EQ(host_kernels().name, all.back().name);
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i].name, all[j].name);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, ::testing::ValuesIn(kernels_under_test()),
                         [](const auto& param) { return test_name(param.param.name); });

}  // namespace
}  // namespace driftless
