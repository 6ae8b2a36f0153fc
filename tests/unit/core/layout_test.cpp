// SPDX-License-Identifier: Apache-2.0
#include "core/layout.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace driftless {
namespace {

TensorSpec spec(std::string name, DType dtype, std::vector<std::uint64_t> shape) {
  auto made = TensorSpec::make(std::move(name), dtype, std::move(shape));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? *made : TensorSpec();
}

WeightLayout layout(std::vector<TensorSpec> tensors) {
  auto made = WeightLayout::make(std::move(tensors));
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? *made : WeightLayout();
}

TEST(TensorSpec, CountsBytesAndUnits) {
  EXPECT_EQ(spec("a", DType::kBF16, {2, 3}).size_bytes, 12U);
  EXPECT_EQ(spec("a", DType::kBF16, {2, 3}).units(), 6U);
  EXPECT_EQ(spec("a", DType::kF4, {4, 3}).size_bytes, 6U);
  EXPECT_EQ(spec("a", DType::kF4, {4, 3}).units(), 6U);
  EXPECT_EQ(spec("a", DType::kF6E2M3, {8}).size_bytes, 6U);
}

TEST(TensorSpec, NoExtentsIsAScalarAndAZeroExtentIsEmpty) {
  EXPECT_EQ(spec("a", DType::kF32, {}).size_bytes, 4U);
  EXPECT_EQ(spec("a", DType::kF32, {5, 0, 7}).size_bytes, 0U);
  const std::uint64_t huge = std::uint64_t{1} << 63;
  EXPECT_EQ(spec("a", DType::kF32, {huge, huge, 0}).size_bytes, 0U);
}

TEST(TensorSpec, ShowsItsShape) {
  EXPECT_EQ(spec("a", DType::kU8, {2, 3}).shape_string(), "[2, 3]");
  EXPECT_EQ(spec("a", DType::kU8, {}).shape_string(), "[]");
}

TEST(TensorSpec, RefusesWhatOverflows) {
  const std::uint64_t half = std::uint64_t{1} << 32;
  for (const std::vector<std::uint64_t>& shape :
       {std::vector<std::uint64_t>{half, half}, {~std::uint64_t{0}}, {half, half, half, half}}) {
    const auto made = TensorSpec::make("big", DType::kU8, shape);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), StatusCode::kCorrupt);
    EXPECT_NE(made.status().message().find("'big'"), std::string_view::npos);
  }
  // The largest that fits: 2^60 - 1 bytes are just below 2^63 bits.
  EXPECT_TRUE(TensorSpec::make("x", DType::kU8, {(std::uint64_t{1} << 60) - 1}).ok());
  EXPECT_FALSE(TensorSpec::make("x", DType::kU8, {std::uint64_t{1} << 60}).ok());
}

TEST(TensorSpec, RefusesPackedTypesThatDoNotFillTheirLastByte) {
  EXPECT_EQ(TensorSpec::make("a", DType::kF4, {3}).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(TensorSpec::make("a", DType::kF6E3M2, {2}).status().code(), StatusCode::kCorrupt);
  EXPECT_TRUE(TensorSpec::make("a", DType::kF6E3M2, {4}).ok());
}

TEST(TensorName, RefusesEmptyControlCharactersAndTooLong) {
  EXPECT_TRUE(check_tensor_name("model.layers.0.mlp/x ü").ok());
  EXPECT_TRUE(check_tensor_name(std::string(4096, 'a')).ok());
  for (const std::string& bad : {std::string(), std::string("a\0b", 3), std::string("a\nb"),
                                 std::string("a\x7f"), std::string(4097, 'a')}) {
    EXPECT_EQ(check_tensor_name(bad).code(), StatusCode::kCorrupt);
    EXPECT_EQ(TensorSpec::make(bad, DType::kU8, {1}).status().code(), StatusCode::kCorrupt);
  }
}

TEST(WeightLayout, SortsByNameAndFinds) {
  const WeightLayout weights = layout(
      {spec("b", DType::kF32, {2}), spec("a.10", DType::kU8, {3}), spec("a.2", DType::kBF16, {4})});
  ASSERT_EQ(weights.size(), 3U);
  EXPECT_EQ(weights[0].name, "a.10");
  EXPECT_EQ(weights[1].name, "a.2");
  EXPECT_EQ(weights[2].name, "b");
  EXPECT_EQ(weights.find("a.2"), 1U);
  EXPECT_EQ(weights.find("a"), std::nullopt);
  EXPECT_EQ(weights.find("c"), std::nullopt);
  EXPECT_EQ(weights.total_bytes(), 8U + 3U + 8U);
  EXPECT_EQ(weights.total_units(), 2U + 3U + 4U);
}

TEST(WeightLayout, RefusesTwoTensorsOfOneName) {
  const auto made = WeightLayout::make(
      {spec("a", DType::kU8, {1}), spec("b", DType::kU8, {1}), spec("a", DType::kU8, {2})});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(made.status().message().find("'a'"), std::string_view::npos);
}

// XXH3-128 of "a\0BF16\0" "2,3,\n" "b\0F32\0\n", computed apart from this code.
TEST(WeightLayout, RefusesMoreBytesThanCanBeCounted) {
  std::vector<TensorSpec> tensors;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"}) {
    tensors.push_back(TensorSpec::make(name, DType::kU8, {(1ULL << 60) - 1}).value());
  }
  EXPECT_EQ(WeightLayout::make(tensors)->total_bytes(), (1ULL << 63) - 8);
  tensors.push_back(TensorSpec::make("i", DType::kU8, {8}).value());
  EXPECT_EQ(WeightLayout::make(tensors).status().code(), StatusCode::kCorrupt);
}

TEST(WeightLayout, SignatureIsFixed) {
  const WeightLayout weights =
      layout({spec("b", DType::kF32, {}), spec("a", DType::kBF16, {2, 3})});
  EXPECT_EQ(to_hex(weights.signature()), "2aa6980d57a18e5d6bab34342be6caf8");
}

TEST(WeightLayout, SignatureDependsOnNamesTypesAndShapes) {
  const Hash128 base = layout({spec("a", DType::kBF16, {2, 3})}).signature();
  EXPECT_EQ(layout({spec("a", DType::kBF16, {2, 3})}).signature(), base);
  EXPECT_NE(layout({spec("b", DType::kBF16, {2, 3})}).signature(), base);
  EXPECT_NE(layout({spec("a", DType::kF16, {2, 3})}).signature(), base);
  EXPECT_NE(layout({spec("a", DType::kBF16, {3, 2})}).signature(), base);
  EXPECT_NE(layout({spec("a", DType::kBF16, {6})}).signature(), base);
  EXPECT_NE(layout({}).signature(), base);
}

TEST(WeightLayout, CheckSameNamesTheFirstDifference) {
  const WeightLayout two = layout({spec("a", DType::kU8, {1}), spec("b", DType::kU8, {2})});
  EXPECT_TRUE(two.check_same(two, "OLD", "NEW").ok());

  const Status missing = two.check_same(layout({spec("a", DType::kU8, {1})}), "OLD", "NEW");
  EXPECT_EQ(missing.code(), StatusCode::kWrongLayout);
  EXPECT_EQ(missing.message(), "tensor 'b' is in OLD but not in NEW");

  const Status extra = layout({spec("a", DType::kU8, {1})}).check_same(two, "OLD", "NEW");
  EXPECT_EQ(extra.message(), "tensor 'b' is in NEW but not in OLD");

  const Status shape = two.check_same(
      layout({spec("a", DType::kU8, {1}), spec("b", DType::kI8, {2, 1})}), "OLD", "NEW");
  EXPECT_EQ(shape.code(), StatusCode::kWrongLayout);
  EXPECT_EQ(shape.message(), "tensor 'b' is U8 [2] in OLD but I8 [2, 1] in NEW");
}

TEST(TensorView, ShowsTheBytesOfItsSpec) {
  const TensorSpec four = spec("a", DType::kBF16, {2});
  const std::byte data[4] = {};
  const TensorView view{&four, data};
  EXPECT_EQ(view.bytes().data(), data);
  EXPECT_EQ(view.bytes().size(), 4U);
}

}  // namespace
}  // namespace driftless
