// SPDX-License-Identifier: Apache-2.0
// Values of settings as text: sizes, durations, numbers, and their opposites. The errors say what
// is wrong with the value and no more; the reader of the key adds where it stands.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// A string from outside as an error message may hold it: on one line, in single quotes, at most
// `max_bytes` of it, without control characters or broken UTF-8.
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
// Insertions, deletions and replacements that lead from one to the other.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace driftless
