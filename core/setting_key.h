// SPDX-License-Identifier: Apache-2.0
// Rows of a settings table. Each row joins a key's name, a kind of value and the field that stores
// it. Every component with settings has such a table beside its code.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <type_traits>

#include "core/hash128.h"
#include "core/setting_values.h"

namespace driftless {

// One setting of `Settings`. Keys of a list's items are named "engines[].url".
template <typename Settings>
struct SettingKey {
  std::string_view name;          // "road.shared_fs.dir"
  std::string_view expected;      // "a size such as 64MiB": for errors and the documentation
  std::string_view default_text;  // empty: text() of the defaults
  std::string_view help;
  // Sets it. An error describes only what is wrong with the value. `item`: its index in a list.
  Status (*apply)(Settings& settings, std::size_t item, std::string_view value);
  // The value, printed as a configuration file may hold it.
  std::string (*text)(const Settings& settings, std::size_t item);
  std::string_view former = {};  // names that it had before, each after a space

  // The same row, which had other names before.
  [[nodiscard]] constexpr SettingKey once(std::string_view names) const {
    SettingKey row = *this;
    row.former = names;
    return row;
  }
};

namespace setting {

inline constexpr std::string_view kAuto = "auto";
inline constexpr std::string_view kNumberOrAuto = "a whole number, or auto";
inline constexpr std::string_view kSizeOrAuto = "a size: 4096, 64MiB, 512MB; or auto";
inline constexpr std::string_view kDurationOrAuto = "a duration: 500ms, 30s, 2min; or auto";
inline constexpr std::string_view kPath = "a path";
inline constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::uint64_t kKiB = 1 << 10, kMiB = kKiB << 10, kGiB = kMiB << 10,
                               kTiB = kGiB << 10;

inline Status not_one_of(std::string_view names, std::string_view found) {
  return error(StatusCode::kInvalidArgument, "expected ", names, ", found ", shown(found));
}

// A kind of value has parse(), which reads the value from text, text(), which prints it, and
// kExpected, which describes it, unless the description differs from key to key.

template <std::uint64_t kLeast, std::uint64_t kLargest>
struct Size {
  static constexpr std::string_view kExpected = "a size: 4096, 64MiB, 512MB";
  static Result<std::uint64_t> parse(std::string_view value) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t size, parse_size(value));
    if (size >= kLeast && size <= kLargest) return size;
    return error(StatusCode::kInvalidArgument, "expected a size from ", size_text(kLeast), " to ",
                 size_text(kLargest), ", found ", size_text(size));
  }
  static std::string text(std::uint64_t value) { return size_text(value); }
};

template <std::uint64_t kLeast = 0, std::uint64_t kLargest = kMost>
struct Count {
  static constexpr std::string_view kExpected = "a whole number";
  static Result<std::uint64_t> parse(std::string_view value) {
    return parse_count(value, kLeast, kLargest);
  }
  static std::string text(std::uint64_t value) { return std::to_string(value); }
};

// The number of a GPU; "auto" is 0 until the process has chosen one.
struct GpuNumber : Count<0, 1023> {
  static constexpr std::string_view kExpected = "auto or a whole number";
  static Result<std::uint64_t> parse(std::string_view value) {
    return Count::parse(value == kAuto ? "0" : value);
  }
};

struct Share {
  static constexpr std::string_view kExpected = "a number from 0 to 1";
  static Result<double> parse(std::string_view value) { return parse_number(value, 0, 1); }
  static std::string text(double value) { return number_text(value); }
};

struct Duration {
  static constexpr std::string_view kExpected = "a duration: 500ms, 30s, 2min";
  static Result<std::chrono::milliseconds> parse(std::string_view value) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::chrono::milliseconds wait, parse_duration(value));
    if (wait.count() > 0) return wait;
    return error(StatusCode::kInvalidArgument, "expected a duration above 0, found ", shown(value));
  }
  static std::string text(std::chrono::milliseconds value) { return duration_text(value); }
};

struct DurationOrNone {
  static constexpr std::string_view kExpected = "a duration: 12h, 30min; or none";
  static Result<std::chrono::milliseconds> parse(std::string_view value) {
    if (value == "none") return std::chrono::milliseconds(0);
    return Duration::parse(value);
  }
  static std::string text(std::chrono::milliseconds value) {
    return value.count() == 0 ? "none" : duration_text(value);
  }
};

struct Switch {
  static constexpr std::string_view kExpected = "true or false";
  static Result<bool> parse(std::string_view value) { return parse_bool(value); }
  static std::string text(bool value) { return value ? "true" : "false"; }
};

struct Text {
  static Result<std::string> parse(std::string_view value) {
    const bool control = std::ranges::any_of(
        value, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    if (!control && value.size() <= 4096) return std::string(value);
    return error(StatusCode::kInvalidArgument, "expected one line of at most 4096 bytes, found ",
                 shown(value));
  }
  static std::string text(const std::string& value) { return value; }
};

// The id of a run; empty: none.
struct RunId {
  static constexpr std::string_view kExpected = "a run's id: 32 hex digits";
  static Result<Hash128> parse(std::string_view value) {
    if (value.empty()) return Hash128();
    Result<Hash128> run = hash128_from_hex(value);
    if (run.ok()) return run;
    return error(StatusCode::kInvalidArgument, "expected ", kExpected, ", found ", shown(value));
  }
  static std::string text(const Hash128& value) { return value.is_zero() ? "" : to_hex(value); }
};

template <typename T>
using Choice = std::pair<std::string_view, T>;

// A value from a table of Choice.
template <const auto& kChoices>
struct OneOf {
  using Value = std::remove_cvref_t<decltype(kChoices[0].second)>;
  static Result<Value> parse(std::string_view value) {
    std::string names;
    for (const auto& [name, choice] : kChoices) {
      if (name == value) return choice;
      names += concat(names.empty() ? "" : " or ", name);
    }
    return not_one_of(names, value);
  }
  static std::string text(Value value) {
    const auto at = std::ranges::find(kChoices, value, &Choice<Value>::second);
    return at == std::end(kChoices) ? "" : std::string(at->first);
  }
};

// A value whose names another component defines: `kParse` reads them, its to_string() prints them.
template <auto kParse, const std::string_view& kNames>
struct Named {
  static constexpr std::string_view kExpected = kNames;
  static auto parse(std::string_view value) -> decltype(kParse(value)) {
    auto parsed = kParse(value);
    if (!parsed.ok()) return not_one_of(kNames, value);
    return parsed;
  }
  static std::string text(const auto& value) { return std::string(to_string(value)); }
};

// Makes rows. Each maker takes lambdas from (settings, item) to fields, so that a field is named
// once for reading and for printing. apply() sets every field of a row; text() prints the first.
template <typename Settings>
struct Rows {
  using Row = SettingKey<Settings>;

  template <auto kAccess>
  static void assign(Settings& settings, std::size_t item, const auto& value) {
    auto& field = kAccess(settings, item);
    field = static_cast<std::remove_reference_t<decltype(field)>>(value);
  }

  template <typename Kind, auto kAccess, auto... kOthers>
  static constexpr Row key(std::string_view name, std::string_view expected,
                           std::string_view help) {
    return {name,
            expected,
            "",
            help,
            [](Settings& settings, std::size_t item, std::string_view value) -> Status {
              DRIFTLESS_ASSIGN_OR_RETURN(const auto parsed, Kind::parse(value));
              assign<kAccess>(settings, item, parsed);
              (assign<kOthers>(settings, item, parsed), ...);
              return {};
            },
            [](const Settings& settings, std::size_t item) {
              return Kind::text(kAccess(settings, item));
            }};
  }
  template <typename Kind, auto... kAccess>
  static constexpr Row key(std::string_view name, std::string_view help) {
    return key<Kind, kAccess...>(name, Kind::kExpected, help);
  }

  // The value may be "auto", which sets the field `kFlag`. text() then prints the value that "auto"
  // stands for; with `kOpen` it prints "auto".
  template <typename Kind, auto kFlag, auto kAccess, bool kOpen = false>
  static constexpr Row auto_key(std::string_view name, std::string_view expected,
                                std::string_view help) {
    return {name,
            expected,
            kAuto,
            help,
            [](Settings& settings, std::size_t item, std::string_view value) -> Status {
              kFlag(settings, item) = value == kAuto;
              if (kFlag(settings, item)) return {};
              DRIFTLESS_ASSIGN_OR_RETURN(kAccess(settings, item), Kind::parse(value));
              return {};
            },
            [](const Settings& settings, std::size_t item) {
              if (kOpen && kFlag(settings, item)) return std::string(kAuto);
              return Kind::text(kAccess(settings, item));
            }};
  }

  // The same, but text() prints "auto" if kLater() is true: the value is chosen during the run.
  template <typename Kind, auto kFlag, auto kAccess, auto kLater>
  static constexpr Row chosen_key(std::string_view name, std::string_view expected,
                                  std::string_view help) {
    Row row = auto_key<Kind, kFlag, kAccess>(name, expected, help);
    row.text = [](const Settings& settings, std::size_t item) {
      return kLater(settings, item) ? std::string(kAuto) : Kind::text(kAccess(settings, item));
    };
    return row;
  }

  // "auto" keeps the component's own default.
  template <typename Kind, auto kAccess>
  static constexpr Row default_key(std::string_view name, std::string_view expected,
                                   std::string_view help) {
    Row row = key<Kind, kAccess>(name, expected, help);
    row.default_text = kAuto;
    row.apply = [](Settings& settings, std::size_t item, std::string_view value) -> Status {
      if (value == kAuto) return {};
      DRIFTLESS_ASSIGN_OR_RETURN(const auto parsed, Kind::parse(value));
      assign<kAccess>(settings, item, parsed);
      return {};
    };
    return row;
  }
};

}  // namespace setting
}  // namespace driftless
