// SPDX-License-Identifier: Apache-2.0
// Every implementation of quantization gives the same bits as reference/, and writes nothing else.
#include <algorithm>
#include <cstring>

#include "support/kernels_under_test.h"
#include "support/quantize_cases.h"

namespace driftless {
namespace {

using namespace driftless::testing;

class Quantizers : public ::testing::TestWithParam<Quantizer> {};

TEST_P(Quantizers, MakeWhatReferenceMakesOfEveryShapeAndAddress) {
  Random random(7);
  for (const std::uint64_t rows : {0, 1, 3, 127, 128, 129, 300}) {
    for (const std::uint64_t columns : {0, 1, 7, 31, 127, 128, 129, 255, 384, 1024, 1190}) {
      const std::size_t count = rows * columns;
      const std::vector<std::uint16_t> weights = random_weights(random, count, rows % 2 == 1);
      GuardedBytes from(count * 2, random() % 5), codes(count, random() % 3),
          scales(quantize_blocks(rows) * quantize_blocks(columns) * 4, random() % 3);
      std::memcpy(from.data(), weights.data(), from.size());
      for (const QuantizeRule rule : kRules) {
        const Quantized expected =
            quantize(all_quantizers().front(), rule, weights.data(), rows, columns);
        ASSERT_TRUE(quantize_fp8(GetParam(), rule, from.data(), rows, columns, 2, codes.data(),
                                 scales.data())
                        .ok());
        ASSERT_EQ(std::memcmp(codes.data(), expected.codes.data(), codes.size()), 0);
        ASSERT_EQ(std::memcmp(scales.data(), expected.scales.data(), scales.size()), 0);
        ASSERT_TRUE(codes.intact() && scales.intact());
      }
    }
  }
}

// INT4 codes and scales of groups, of every shape and at every address.
TEST_P(Quantizers, MakeOfGroupsWhatReferenceMakes) {
  Random random(17);
  for (const unsigned group : {32U, 128U}) {
    for (const std::uint64_t rows : {0, 1, 3, 65, 130}) {
      for (const std::uint64_t groups : {0, 1, 3, 8}) {
        const std::uint64_t columns = groups * group;
        const std::size_t count = rows * columns;
        const std::vector<std::uint16_t> weights = random_weights(random, count, rows % 2 == 1);
        GuardedBytes from(count * 2, random() % 5), packed(count / 2, random() % 3),
            scales(rows * groups * 2, random() % 3);
        std::vector<std::byte> expected(count / 2), expected_scales(rows * groups * 2);
        std::memcpy(from.data(), weights.data(), from.size());
        all_quantizers().front().groups(group, rows, columns, columns, from.data(), expected.data(),
                                        expected_scales.data());
        ASSERT_TRUE(quantize_int4(GetParam(), group, from.data(), rows, columns, 2, packed.data(),
                                  scales.data())
                        .ok());
        ASSERT_EQ(packed.copy(), expected) << group << " " << rows << " " << columns;
        ASSERT_EQ(scales.copy(), expected_scales);
        ASSERT_TRUE(packed.intact() && scales.intact());
      }
    }
  }
}

// Divides a matrix anywhere. Parts that share the largest magnitudes give the codes of the whole
// matrix.
TEST_P(Quantizers, MakeOfPartsWhatTheyMakeOfTheWhole) {
  Random random(11);
  for (int turn = 0; turn < 60; ++turn) {
    const std::uint64_t rows = 1 + random() % 300, columns = 1 + random() % 700;
    const std::vector<std::uint16_t> weights =
        random_weights(random, rows * columns, turn % 3 == 0);
    const auto* const from = reinterpret_cast<const std::byte*>(weights.data());
    const QuantizeRule rule = kRules[turn % 3];
    const Quantized expected =
        quantize(all_quantizers().front(), rule, weights.data(), rows, columns);
    const std::uint64_t row = random() % (rows + 1), column = random() % (columns + 1);
    const std::uint64_t wide = quantize_blocks(columns);
    std::vector<std::uint16_t> largest(quantize_blocks(rows) * wide);
    std::vector<std::uint8_t> codes(rows * columns);
    const auto each_part = [&](bool coded) {
      for (const auto& [top, high] :
           {std::pair(std::uint64_t{0}, row), std::pair(row, rows - row)}) {
        for (const auto& [left, across] :
             {std::pair(std::uint64_t{0}, column), std::pair(column, columns - column)}) {
          const MatrixPart part{high, across, columns, top % 128, left % 128};
          std::vector<std::uint16_t> maxima(part.blocks_high() * part.blocks_wide());
          const auto at = [&](std::size_t i) -> std::uint16_t& {
            return largest[(top / 128 + i / part.blocks_wide()) * wide + left / 128 +
                           i % part.blocks_wide()];
          };
          for (std::size_t i = 0; i < maxima.size() && coded; ++i) maxima[i] = at(i);
          const std::uint64_t first = top * columns + left;
          ASSERT_TRUE(
              quantize_part(GetParam(), rule, part, from + first * 2, 2, maxima.data(),
                            coded ? reinterpret_cast<std::byte*>(codes.data() + first) : nullptr)
                  .ok());
          for (std::size_t i = 0; i < maxima.size(); ++i) at(i) = std::max(at(i), maxima[i]);
        }
      }
    };
    each_part(false);
    each_part(true);
    ASSERT_EQ(codes, expected.codes) << rows << "x" << columns << " at " << row << "," << column;
    for (std::size_t i = 0; i < largest.size(); ++i) {
      ASSERT_EQ(fp8_scale(rule, largest[i]), expected.scales[i]);
    }
    for (std::size_t i = 0; i < weights.size(); i += 97) {  // one by one
      const std::size_t block = i / columns / 128 * wide + i % columns / 128;
      ASSERT_EQ(fp8_code(rule, largest[block], weights[i]), expected.codes[i]);
    }
  }
}

// Each of the 65536 weights with its own magnitude as the block's largest, or with another one,
// from denormal to infinite.
TEST_P(Quantizers, MakeWhatReferenceMakesOfEveryWeight) {
  std::vector<std::uint16_t> all(65536);
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for (const std::uint64_t columns : {1, 16, 128, 65536}) {
    for (const QuantizeRule rule : kRules) {
      const Quantized expected = reference(rule, all, columns);
      const Quantized made = quantize(GetParam(), rule, all.data(), all.size() / columns, columns);
      EXPECT_EQ(made.codes, expected.codes);
      EXPECT_EQ(std::memcmp(made.scales.data(), expected.scales.data(), made.scales.size() * 4), 0);
    }
  }
  Random random(3);
  for (int turn = 0; turn < 200; ++turn) {  // with one largest magnitude
    std::vector<std::uint16_t> weights(128 * 128);
    const auto largest = static_cast<std::uint16_t>(random() % 0x7f81);
    for (std::uint16_t& weight : weights) {
      weight = static_cast<std::uint16_t>(random() % (largest + 1) | (random() % 2 << 15));
    }
    for (const QuantizeRule rule : kRules) {
      const Quantized expected = quantize(all_quantizers().front(), rule, weights.data(), 128, 128);
      const Quantized made = quantize(GetParam(), rule, weights.data(), 128, 128);
      ASSERT_EQ(made.codes, expected.codes) << to_string(rule) << " " << largest;
      ASSERT_EQ(std::memcmp(made.scales.data(), expected.scales.data(), 4), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Quantizers, ::testing::ValuesIn(quantizers_under_test()),
                         [](const auto& each) { return test_name(each.param.name); });

}  // namespace
}  // namespace driftless
