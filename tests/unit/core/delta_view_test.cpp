// SPDX-License-Identifier: Apache-2.0
#include "core/delta_view.h"

#include <gtest/gtest.h>

#include <array>

namespace driftless {
namespace {

TEST(DeltaView, CountsUnitsAndShowsTheirBytes) {
  const std::array<std::uint32_t, 3> offsets{0, 5, 9};
  const std::array<std::byte, 12> values{};
  const DeltaView view{
      .tensor = 2, .unit_bytes = 4, .origin = 7, .offsets = offsets, .values = values.data()};
  EXPECT_EQ(view.count(), 3U);
  EXPECT_EQ(view.value_bytes().data(), values.data());
  EXPECT_EQ(view.value_bytes().size(), 12U);
}

TEST(DeltaView, DefaultIsEmpty) {
  const DeltaView view;
  EXPECT_EQ(view.count(), 0U);
  EXPECT_TRUE(view.value_bytes().empty());
}

}  // namespace
}  // namespace driftless
