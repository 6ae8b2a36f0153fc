// SPDX-License-Identifier: Apache-2.0
#include "formats/encoding.h"

#include <gtest/gtest.h>

namespace driftless {
namespace {

TEST(Encoding, EveryOneIsFoundByNameAndByNumber) {
  for (const EncodingInfo& row : all_encodings()) {
    EXPECT_EQ(parse_encoding(row.name).value(), row.encoding);
    EXPECT_EQ(encoding_from_wire(static_cast<std::uint8_t>(row.encoding)).value(), row.encoding);
    EXPECT_EQ(info(row.encoding).name, row.name);
    EXPECT_FALSE(row.positional && row.interchange) << row.name;
  }
}

TEST(Encoding, NumbersOnTheWireDoNotChange) {
  EXPECT_EQ(encoding_from_wire(0).value(), Encoding::kIndices);
  EXPECT_EQ(encoding_from_wire(1).value(), Encoding::kDeltas);
  EXPECT_EQ(encoding_from_wire(2).value(), Encoding::kDeltasZstd);
  EXPECT_EQ(encoding_from_wire(3).value(), Encoding::kXor);
  EXPECT_EQ(encoding_from_wire(4).value(), Encoding::kOverwrite);
  EXPECT_EQ(encoding_from_wire(5).value(), Encoding::kCompact);
  EXPECT_EQ(encoding_from_wire(6).value(), Encoding::kFull);
}

TEST(Encoding, UnknownOnesAreRefusedNamingTheKnown) {
  const Status status = parse_encoding("delta").status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("deltas_zstd"), std::string_view::npos);
  EXPECT_EQ(encoding_from_wire(7).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(encoding_from_wire(255).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace driftless
