// SPDX-License-Identifier: Apache-2.0
// Counts in messages and tables for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// "0 versions", "1 version", "2 versions". `plural`: for nouns that take more than an "s".
[[nodiscard]] inline std::string counted(std::uint64_t count, std::string_view noun,
                                         std::string_view plural = {}) {
  if (count != 1 && !plural.empty()) return concat(count, " ", plural);
  return concat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace driftless
