// SPDX-License-Identifier: Apache-2.0
#include "core/utc_time.h"

#include <array>
#include <charconv>
#include <cstdio>

namespace driftless {
namespace {

using std::chrono::system_clock;

// A number of exactly `size` digits; -1 if other characters are among them.
int digits(std::string_view text, std::size_t at, std::size_t size) {
  int number = -1;
  const char* const begin = text.data() + at;
  const auto [end, code] = std::from_chars(begin, begin + size, number);
  return code == std::errc() && end == begin + size && *begin != '-' ? number : -1;
}

}  // namespace

std::string utc_text(system_clock::time_point when) {
  using namespace std::chrono;
  const auto day = floor<days>(when);
  const year_month_day date(day);
  const hh_mm_ss time(floor<milliseconds>(when - day));
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(time.hours().count()),
                static_cast<int>(time.minutes().count()), static_cast<int>(time.seconds().count()),
                static_cast<int>(time.subseconds().count()));
  return text.data();
}

std::optional<system_clock::time_point> parse_utc(std::string_view text) {
  using namespace std::chrono;
  constexpr std::string_view kForm = "0000-00-00T00:00:00.000Z";
  constexpr std::size_t kSeconds = 19;  // characters before the fraction
  const bool fraction = text.size() == kForm.size() && text[kSeconds] == '.';
  if ((!fraction && text.size() != kSeconds + 1) || text.back() != 'Z') return std::nullopt;
  for (std::size_t i = 0; i < kSeconds; ++i) {
    if (kForm[i] != '0' && text[i] != kForm[i]) return std::nullopt;
  }
  const int years = digits(text, 0, 4);
  const year_month_day date(year(years), month(digits(text, 5, 2)), day(digits(text, 8, 2)));
  const int hour = digits(text, 11, 2), minute = digits(text, 14, 2), second = digits(text, 17, 2);
  const int millisecond = fraction ? digits(text, kSeconds + 1, 3) : 0;
  if (years < 0 || !date.ok() || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 ||
      second > 60 || millisecond < 0) {
    return std::nullopt;
  }
  return sys_days(date) + hours(hour) + minutes(minute) + seconds(second) +
         milliseconds(millisecond);
}

}  // namespace driftless
