// SPDX-License-Identifier: Apache-2.0
// Parses and prints values of settings: sizes, durations, numbers. The errors describe only what is
// wrong with the value; the caller adds the key and the file.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// A string from outside, made safe for an error message: on one line, in single quotes, at most
// `max_bytes` long, without control characters or broken UTF-8.
[[nodiscard]] std::string shown(std::string_view text, std::size_t max_bytes = 80);

// "4096", "64KiB", "512MB", "1 GiB".
[[nodiscard]] Result<std::uint64_t> parse_size(std::string_view text);
[[nodiscard]] std::string size_text(std::uint64_t bytes);
// "500ms", "30s", "2min", "1h"; a unit is required. At most kMaxDuration.
inline constexpr std::chrono::milliseconds kMaxDuration = std::chrono::hours(24 * 365);
[[nodiscard]] Result<std::chrono::milliseconds> parse_duration(std::string_view text);
[[nodiscard]] std::string duration_text(std::chrono::milliseconds duration);
[[nodiscard]] Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t least,
                                                std::uint64_t most);
[[nodiscard]] Result<double> parse_number(std::string_view text, double least, double most);
[[nodiscard]] std::string number_text(double value);
[[nodiscard]] Result<bool> parse_bool(std::string_view text);
// The edit distance: insertions, deletions and replacements between the two.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace driftless
