// SPDX-License-Identifier: Apache-2.0
// Moments in UTC, as text.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace driftless {

// "2026-01-31T12:00:00.250Z".
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point when);
// Reads the same, with or without the fraction; nothing if the text is no such moment.
[[nodiscard]] std::optional<std::chrono::system_clock::time_point> parse_utc(std::string_view text);

}  // namespace driftless
