// SPDX-License-Identifier: Apache-2.0
#include "core/counted.h"

#include <gtest/gtest.h>

namespace driftless {
namespace {

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(0, "version"), "0 versions");
  EXPECT_EQ(counted(1, "version"), "1 version");
  EXPECT_EQ(counted(2, "version"), "2 versions");
  EXPECT_EQ(counted(1, "fetch", "fetches"), "1 fetch");
  EXPECT_EQ(counted(21, "fetch", "fetches"), "21 fetches");
}

}  // namespace
}  // namespace driftless
