// SPDX-License-Identifier: Apache-2.0
// The reference implementation of quantization follows the rules, and differs from the recorded
// output of slime's and SGLang's converters only by the counts below.
#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <vector>

#include "formats/checkpoint.h"
#include "support/checkout_paths.h"
#include "support/quantize_cases.h"

namespace driftless {
namespace {

using namespace driftless::testing;

constexpr std::uint8_t kNan = 0x7f;

float value_of(std::uint8_t code) {
  const int exponent = (code >> 3) & 0xf, fraction = code & 7;
  if ((code & 0x7f) == kNan) return std::numeric_limits<float>::quiet_NaN();
  const double size =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return static_cast<float>((code & 0x80) != 0 ? -size : size);
}

TEST(QuantizeRules, TheLargestHasTheLargestCodeAndZerosKeepTheirSign) {
  for (const QuantizeRule rule : kRules) {
    const Quantized made = reference(rule, {bf16(7), bf16(-7), 0, 0x8000, bf16(3.5)});
    const std::vector<std::uint8_t> expected{0x7e, 0xfe, 0x00, 0x80, 0x76};
    EXPECT_EQ(made.codes, expected) << to_string(rule);
    EXPECT_EQ(made.scales, std::vector<float>{0x1p-6F}) << to_string(rule);
  }
}

TEST(QuantizeRules, ABlockOfZerosHasTheSmallestScale) {
  const std::vector<std::uint16_t> zeros(128 * 128);
  const float least[] = {1e-10F / 448, std::bit_cast<float>(f32_of_bf16(0x2b8d)) / 448, 0x1p-22F};
  for (std::size_t i = 0; i < std::size(kRules); ++i) {
    const Quantized made = reference(kRules[i], zeros, 128);
    EXPECT_EQ(made.scales, std::vector<float>{least[i]}) << to_string(kRules[i]);
    EXPECT_EQ(std::ranges::count(made.codes, 0), 128 * 128) << to_string(kRules[i]);
  }
}

TEST(QuantizeRules, InfinitiesAndNansAreDefined) {
  constexpr std::uint16_t kInf = 0x7f80, kNanBits = 0x7fc0, kMinusNan = 0xffff;
  for (const QuantizeRule rule : kRules) {
    const Quantized nan = reference(rule, {kNanBits, bf16(7), kMinusNan, 0x7f81});
    EXPECT_EQ(nan.codes, (std::vector<std::uint8_t>{kNan, 0x7e, kNan, kNan})) << to_string(rule);
    EXPECT_EQ(nan.scales, std::vector<float>{0x1p-6F}) << "a NaN does not count";
    const Quantized inf =
        reference(rule, {kInf, bf16(7), bf16(-7), static_cast<std::uint16_t>(kInf | 0x8000)});
    EXPECT_EQ(inf.codes, (std::vector<std::uint8_t>{kNan, 0x00, 0x80, kNan})) << to_string(rule);
    EXPECT_TRUE(std::isinf(inf.scales[0]));
    const Quantized alone = reference(rule, {kNanBits, kMinusNan});
    EXPECT_EQ(alone.scales, reference(rule, {0}).scales) << "as a block of zeros";
  }
}

TEST(QuantizeRules, DenormalsAndTheLargestFiniteWeightDoNotBreakTheScale) {
  for (const QuantizeRule rule : kRules) {
    const Quantized small = reference(rule, {0x0001, 0x8001, 0x007f});
    EXPECT_EQ(small.codes, (std::vector<std::uint8_t>{0x00, 0x80, 0x00})) << to_string(rule);
    EXPECT_EQ(small.scales, reference(rule, {0}).scales);
    const Quantized large = reference(rule, {0x7f7f, 0x7eff});
    EXPECT_TRUE(std::isnormal(large.scales[0])) << to_string(rule);
    const double value = double{value_of(large.codes[0])} * double{large.scales[0]};
    EXPECT_LE(std::fabs(value / 0x1.fep127 - 1), 0.0625) << to_string(rule);
  }
}

// With a largest magnitude of 448 the scale is 1, so the weights themselves are rounded.
TEST(QuantizeRules, TiesGoToTheEvenCode) {
  const std::vector<std::pair<float, std::uint8_t>> cases = {
      {17, 0x58},       {19, 0x5a},        {1.0625F, 0x38}, {1.1875F, 0x3a},  {432, 0x7e},
      {400, 0x7c},      {0x1p-10F, 0x00},  {0x3p-10F, 2},   {0x5p-10F, 2},    {0xfp-10F, 0x08},
      {0x1.1p-6F, 0x8}, {0x1.3p-6F, 0x0a}, {-17, 0xd8},     {-0x1p-10F, 0x80}};
  for (const QuantizeRule rule : kRules) {
    std::vector<std::uint16_t> weights{bf16(448)};
    for (const auto& [weight, code] : cases) weights.push_back(bf16(weight));
    const Quantized made = reference(rule, weights);
    ASSERT_EQ(made.scales[0], 1.0F);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(made.codes[i + 1], cases[i].second) << to_string(rule) << " " << cases[i].first;
    }
  }
}

// Quantizing dequantized codes again, as DeepGEMM and SGLang do, gives the same codes and scales if
// no scale is halved. As in these programs, the dequantized values are bfloat16.
TEST(QuantizeRules, Ue8m0IsClosedUnderRequantization) {
  Random random(11);
  unsigned halved = 0;
  for (int turn = 0; turn < 400; ++turn) {
    std::vector<std::uint16_t> weights = random_weights(random, 128 * 4, false);
    // Largest magnitudes around codes 224 and 232, and around the smallest scale.
    const float scale = std::ldexp(1.0F, -24 + turn % 8);
    for (std::uint16_t& weight : weights) {
      weight = bf16(scale * static_cast<float>(random() % 233));
    }
    weights[5] = bf16(scale * static_cast<float>(216 + turn % 24));
    const Quantized first = reference(QuantizeRule::kUe8m0, weights, 128);
    std::vector<std::uint16_t> values;
    for (const std::uint8_t code : first.codes) {
      values.push_back(bf16(value_of(code) * first.scales[0]));
    }
    const Quantized again = reference(QuantizeRule::kUe8m0, values, 128);
    ASSERT_EQ(again.codes, first.codes);
    ASSERT_EQ(again.scales, first.scales);
    int exponent = 0;
    ASSERT_EQ(std::frexp(first.scales[0], &exponent), 0.5F);
    ASSERT_GE(first.scales[0], 0x1p-22F);
    const std::uint8_t most =
        std::ranges::max(first.codes, {}, [](std::uint8_t code) { return code & 0x7f; });
    EXPECT_TRUE(first.scales[0] == 0x1p-22F || (most & 0x7f) > 0x76);
    if ((most & 0x7f) == 0x7e) ++halved;
  }
  EXPECT_GT(halved, 20U);
}

// --- the output of other software for the same weights (tests/python/record_*.py) ---------------

struct Differences {
  std::uint64_t codes = 0, scales = 0;
  friend bool operator==(const Differences&, const Differences&) = default;
  friend std::ostream& operator<<(std::ostream& to, const Differences& of) {
    return to << "{" << of.codes << ", " << of.scales << "}";
  }
};

// The recorded inputs, and the recorded output of converters.
class Record {
 public:
  void open(const std::string& name) {
    Result<Checkpoint> opened =
        Checkpoint::open(posix_file_system(), std::string(test_data()) + "/golden/" + name);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    recorded_.emplace(std::move(*opened));
  }
  [[nodiscard]] TensorView tensor(const std::string& name) const {
    const auto at = recorded_->layout().find(name);
    EXPECT_TRUE(at.has_value()) << name;
    return recorded_->tensor(at.value_or(0));
  }

 private:
  std::optional<Checkpoint> recorded_;
};

class Recorded : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(record_.open("fp8_converters.safetensors")); }
  // The differences between the output of `converter` for `input` and that of every implementation
  // by `rule`.
  [[nodiscard]] Differences compare(const std::string& input, const std::string& converter,
                                    QuantizeRule rule) const {
    const TensorView weights = record_.tensor(input);
    const TensorView codes = record_.tensor(input + "." + converter + ".codes");
    const TensorView scales = record_.tensor(input + "." + converter + ".scales");
    Differences first;
    for (const Quantizer& each : all_quantizers()) {
      std::vector<std::byte> quantized_codes(codes.bytes().size()),
          quantized_scales(scales.bytes().size());
      const std::vector<std::uint64_t>& shape = weights.spec->shape;
      EXPECT_TRUE(quantize_fp8(each, rule, weights.data, shape[0], shape[1], 1,
                               quantized_codes.data(), quantized_scales.data())
                      .ok());
      Differences found;
      for (std::size_t i = 0; i < quantized_codes.size(); ++i) {
        found.codes += quantized_codes[i] != codes.data[i] ? 1 : 0;
      }
      for (std::size_t i = 0; i < quantized_scales.size(); i += 4) {
        found.scales += std::memcmp(&quantized_scales[i], scales.data + i, 4) != 0 ? 1 : 0;
      }
      if (each.name == "reference") first = found;
      EXPECT_EQ(found, first) << each.name;
    }
    return first;
  }

 private:
  Record record_;
};

TEST_F(Recorded, SlimeSendsWhatLinearMakes) {
  for (const char* const input : {"random", "trained", "stepped", "edges"}) {
    EXPECT_EQ(compare(input, "slime_live", QuantizeRule::kLinear), Differences()) << input;
  }
  // Three NaNs and two infinities: slime's kernel clamps NaNs to -448.
  EXPECT_EQ(compare("odd", "slime_live", QuantizeRule::kLinear), (Differences{5, 0}));
}

TEST_F(Recorded, SlimesToolMakesWhatLinearDivMakes) {
  for (const char* const input : {"random", "trained", "stepped", "edges"}) {
    EXPECT_EQ(compare(input, "slime_tool", QuantizeRule::kLinearDiv), Differences()) << input;
  }
  // Torch's largest magnitude of a block with a NaN is NaN, and so are its scale and all its codes;
  // two of these codes are NaN here, too. The NaNs of two infinities have signs.
  EXPECT_EQ(compare("odd", "slime_tool", QuantizeRule::kLinearDiv), (Differences{3072, 1}));
}

TEST_F(Recorded, SGLangMakesWhatUe8m0MakesUnlessItHalves) {
  for (const char* const input : {"random", "trained", "stepped", "edges"}) {
    EXPECT_EQ(compare(input, "sglang_ue8m0", QuantizeRule::kUe8m0), Differences()) << input;
  }
  // The blocks with a NaN and with infinities have the largest scale. In the last block the largest
  // code is 224, so this implementation halves the scale and doubles all codes but 9 zeros.
  EXPECT_EQ(compare("odd", "sglang_ue8m0", QuantizeRule::kUe8m0), (Differences{5172, 3}));
}

// The recorded output of slime's INT4 converter for other inputs.
class RecordedInt4 : public ::testing::TestWithParam<unsigned> {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(record_.open("int4_converter.safetensors")); }
  [[nodiscard]] Differences compare(const std::string& input) const {
    const TensorView weights = record_.tensor(input);
    const std::string made = input + "." + std::to_string(GetParam());
    const TensorView packed = record_.tensor(made + ".packed");
    const TensorView scales = record_.tensor(made + ".scales");
    Differences first;
    for (const Quantizer& each : all_quantizers()) {
      std::vector<std::byte> own_packed(packed.bytes().size()), own_scales(scales.bytes().size());
      const std::vector<std::uint64_t>& shape = weights.spec->shape;
      EXPECT_TRUE(quantize_int4(each, GetParam(), weights.data, shape[0], shape[1], 1,
                                own_packed.data(), own_scales.data())
                      .ok());
      Differences found;
      for (std::size_t i = 0; i < own_packed.size(); ++i) {
        const auto differs = std::to_integer<unsigned>(own_packed[i] ^ packed.data[i]);
        found.codes += ((differs & 0x0fU) != 0 ? 1 : 0) + ((differs & 0xf0U) != 0 ? 1 : 0);
      }
      for (std::size_t i = 0; i < own_scales.size(); i += 2) {
        found.scales += std::memcmp(&own_scales[i], scales.data + i, 2) != 0 ? 1 : 0;
      }
      if (each.name == "reference") first = found;
      EXPECT_EQ(found, first) << each.name;
    }
    return first;
  }

 private:
  Record record_;
};

INSTANTIATE_TEST_SUITE_P(Groups, RecordedInt4, ::testing::Values(32U, 128U));

TEST_P(RecordedInt4, SlimeMakesTheSameCodesAndScales) {
  for (const char* const input : {"random", "trained", "stepped", "odd"}) {
    EXPECT_EQ(compare(input), Differences()) << input;
  }
  // 96 times the largest bfloat16. slime multiplies its code by the rounded scale, which overflows.
  // The code of the infinity does not fit, and changes the two codes above it.
  EXPECT_EQ(compare("edges"), (Differences{288, 0}));
}

// One group, computed by hand: its codes, and its scale as bfloat16.
TEST(Int4Groups, AreAsTheRuleDefines) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto group_of = [](std::vector<float> first) {
    std::vector<std::uint16_t> weights(32);
    for (std::size_t i = 0; i < first.size(); ++i) weights[i] = bf16(first[i]);
    std::vector<int> codes;
    std::array<std::uint8_t, 16> packed{};
    std::uint16_t scale = 0;
    all_quantizers().front().groups(32, 1, 32, 32, weights.data(), packed.data(), &scale);
    for (std::size_t i = 0; i < first.size(); ++i) {
      codes.push_back((packed[i / 2] >> (4 * (i % 2)) & 15) - 8);
    }
    return std::pair(codes, std::bit_cast<float>(f32_of_bf16(scale)));
  };
  using Codes = std::vector<int>;
  // Ties go to even: 0.5, 1.5 and 2.5 steps.
  EXPECT_EQ(group_of({7, -7, 1, 0.5, 1.5, 2.5, -2.5}),
            std::pair(Codes({7, -7, 1, 0, 2, 2, -2}), 1.0F));
  // The least scale is 1e-5 rounded to bfloat16; the codes are computed with 1e-5 itself.
  const float least = std::bit_cast<float>(f32_of_bf16(bf16(1e-5F)));
  EXPECT_EQ(group_of({0, -0.0F, 1e-5F, -3e-5F, 1e-40F}), std::pair(Codes({0, 0, 1, -3, 0}), least));
  // A NaN does not count; beside an infinite weight all codes are 0.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(group_of({nan, 7, -nan}), std::pair(Codes({0, 7, 0}), 1.0F));
  EXPECT_EQ(group_of({inf, 7, -inf, -3}), std::pair(Codes({0, 0, 0, 0}), inf));
}

}  // namespace
}  // namespace driftless
