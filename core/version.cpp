// SPDX-License-Identifier: Apache-2.0
#include "core/version.h"

#include <charconv>

namespace driftless {

std::string version_string(std::uint64_t version) {
  const std::string digits = std::to_string(version);
  return digits.size() < 6 ? std::string(6 - digits.size(), '0') + digits : digits;
}

Result<std::uint64_t> parse_version_string(std::string_view text) {
  std::uint64_t version = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, version);
  if (text.size() < 6 || failure != std::errc() || stop != end || version > kMaxVersion) {
    return error(StatusCode::kCorrupt, "'", text.substr(0, 40),
                 "' is not a version number of at least six digits");
  }
  return version;
}

}  // namespace driftless
