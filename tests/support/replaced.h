// SPDX-License-Identifier: Apache-2.0
// Replaces one piece of a text, for tests of the inputs that a parser refuses.
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
