// SPDX-License-Identifier: Apache-2.0
#include "core/setting_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

namespace driftless {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};
constexpr std::array<Unit, 10> kSizes = {{{"", 1},
                                          {"B", 1},
                                          {"kB", 1'000},
                                          {"KiB", std::uint64_t{1} << 10},
                                          {"MB", 1'000'000},
                                          {"MiB", std::uint64_t{1} << 20},
                                          {"GB", 1'000'000'000},
                                          {"GiB", std::uint64_t{1} << 30},
                                          {"TB", 1'000'000'000'000},
                                          {"TiB", std::uint64_t{1} << 40}}};
constexpr std::array<Unit, 4> kDurations = {
    {{"ms", 1}, {"s", 1'000}, {"min", 60'000}, {"h", 3'600'000}}};

// A whole number followed by one of the units; nothing if the text is not that or does not fit.
template <std::size_t N>
std::optional<std::uint64_t> parse_with_unit(std::string_view text,
                                             const std::array<Unit, N>& units) {
  std::uint64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc()) return std::nullopt;
  std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  for (const Unit& unit : units) {
    if (rest != unit.name) continue;
    if (number > std::numeric_limits<std::uint64_t>::max() / unit.factor) return std::nullopt;
    return number * unit.factor;
  }
  return std::nullopt;
}

}  // namespace

std::string shown(std::string_view text, std::size_t max_bytes) {
  using nlohmann::json;
  std::string out = "'";
  try {
    // The cut may split a character: its broken bytes are replaced like any others.
    const std::string quoted =
        json(text.substr(0, max_bytes)).dump(-1, ' ', false, json::error_handler_t::replace);
    out.append(quoted, 1, quoted.size() - 2);
  } catch (const std::exception&) {
    out += '?';
  }
  return out + (text.size() > max_bytes ? "...'" : "'");
}

Result<std::uint64_t> parse_size(std::string_view text) {
  const auto size = parse_with_unit(text, kSizes);
  if (!size || *size > (std::uint64_t{1} << 60)) {
    return error(StatusCode::kInvalidArgument,
                 "expected a size such as 4096, 64MiB or 512MB, found ", shown(text));
  }
  return *size;
}

std::string size_text(std::uint64_t bytes) {
  for (const Unit& unit : {kSizes[9], kSizes[7], kSizes[5], kSizes[3]}) {
    if (bytes >= unit.factor && bytes % unit.factor == 0) {
      return concat(bytes / unit.factor, unit.name);
    }
  }
  return std::to_string(bytes);
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  const auto ms = parse_with_unit(text, kDurations);
  if (!ms || *ms > static_cast<std::uint64_t>(kMaxDuration.count())) {
    return error(StatusCode::kInvalidArgument,
                 "expected a duration such as 500ms, 30s or 2min, found ", shown(text));
  }
  return std::chrono::milliseconds(*ms);
}

std::string duration_text(std::chrono::milliseconds duration) {
  const auto ms = static_cast<std::uint64_t>(duration.count());
  for (const Unit& unit : {kDurations[3], kDurations[2], kDurations[1]}) {
    if (ms >= unit.factor && ms % unit.factor == 0) return concat(ms / unit.factor, unit.name);
  }
  return concat(ms, "ms");
}

Result<std::uint64_t> parse_count(std::string_view text, std::uint64_t least, std::uint64_t most) {
  std::uint64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    return error(StatusCode::kInvalidArgument, "expected a whole number from ", least, " to ", most,
                 ", found ", shown(text));
  }
  return number;
}

Result<double> parse_number(std::string_view text, double least, double most) {
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(number) ||
      number < least || number > most) {
    return error(StatusCode::kInvalidArgument, "expected a number from ", number_text(least),
                 " to ", number_text(most), ", found ", shown(text));
  }
  return number;
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  const auto [end, code] = std::to_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() ? std::string(text.data(), end) : std::to_string(value);
}

Result<bool> parse_bool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return error(StatusCode::kInvalidArgument, "expected true or false, found ", shown(text));
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);  // of the part of `a` before i
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace driftless
