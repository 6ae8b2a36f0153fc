// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>

namespace driftless {
namespace {

TEST(DType, NumbersOnTheWireAreFixed) {
  const std::string_view in_order[] = {
      "BOOL", "U8",   "I8",      "F8_E5M2", "F8_E4M3",     "F8_E8M0",    "I16", "U16",
      "F16",  "BF16", "I32",     "U32",     "F32",         "F64",        "I64", "U64",
      "C64",  "F4",   "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"};
  ASSERT_EQ(all_dtypes().size(), std::size(in_order));
  for (std::uint8_t number = 0; number < std::size(in_order); ++number) {
    const auto dtype = dtype_from_wire(number);
    ASSERT_TRUE(dtype.ok());
    EXPECT_EQ(info(*dtype).name, in_order[number]);
    EXPECT_EQ(static_cast<std::uint8_t>(*dtype), number);
  }
}

TEST(DType, RowsAreInTheOrderOfTheEnumerationWithUniqueNames) {
  std::set<std::string_view> names;
  std::set<std::string_view> torch_names;
  for (std::size_t i = 0; i < all_dtypes().size(); ++i) {
    const DTypeInfo& row = all_dtypes()[i];
    EXPECT_EQ(static_cast<std::size_t>(row.dtype), i);
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(torch_names.insert(row.torch_name).second) << row.torch_name;
  }
}

TEST(DType, NamesAreReadBack) {
  for (const DTypeInfo& row : all_dtypes()) {
    const auto by_name = parse_dtype(row.name);
    const auto by_torch_name = parse_torch_dtype(row.torch_name);
    ASSERT_TRUE(by_name.ok() && by_torch_name.ok()) << row.name;
    EXPECT_EQ(*by_name, row.dtype);
    EXPECT_EQ(*by_torch_name, row.dtype);
  }
}

TEST(DType, UnknownNamesAreUnsupportedAndNamed) {
  for (const std::string_view name : {"", "bf16", "BF16 ", "F128"}) {
    const auto dtype = parse_dtype(name);
    ASSERT_FALSE(dtype.ok()) << name;
    EXPECT_EQ(dtype.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(dtype.status().message().find(name), std::string_view::npos);
  }
  EXPECT_EQ(parse_torch_dtype("BF16").status().code(), StatusCode::kUnsupported);
}

TEST(DType, NumbersPastTheLastAreCorrupt) {
  EXPECT_EQ(dtype_from_wire(22).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(dtype_from_wire(255).status().code(), StatusCode::kCorrupt);
}

TEST(DType, UnitIsTheElementOrTheByteOfPackedOnes) {
  EXPECT_EQ(unit_bytes(DType::kBF16), 2U);
  EXPECT_EQ(unit_bytes(DType::kF32), 4U);
  EXPECT_EQ(unit_bytes(DType::kC64), 8U);
  EXPECT_EQ(unit_bytes(DType::kF8E4M3), 1U);
  EXPECT_EQ(unit_bytes(DType::kF4), 1U);
  EXPECT_EQ(unit_bytes(DType::kF6E3M2), 1U);
  for (const DTypeInfo& row : all_dtypes()) {
    const unsigned unit = unit_bytes(row.dtype);
    EXPECT_TRUE(unit == 1 || unit == 2 || unit == 4 || unit == 8) << row.name;
    if (row.bits >= 8) {
      EXPECT_EQ(unit * 8, row.bits) << row.name;
    }
  }
}

}  // namespace
}  // namespace driftless
