// SPDX-License-Identifier: Apache-2.0
// A text with one piece of it exchanged, for tests of what a parser refuses.
#pragma once

#include <gtest/gtest.h>

#include <string>

namespace driftless::testing {

inline std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

}  // namespace driftless::testing
