// SPDX-License-Identifier: Apache-2.0
// What rows of the table of keys are made with. Private to config_keys.cpp.
#pragma once

#include <chrono>
#include <limits>
#include <string_view>
#include <utility>

#include "formats/strict_json.h"
#include "plugin/job/config.h"
#include "plugin/job/config_values.h"

namespace driftless::config_key {

using Milliseconds = std::chrono::milliseconds;
template <typename T>
using Choice = std::pair<std::string_view, T>;

inline constexpr std::string_view kAuto = "auto";
inline constexpr std::string_view kSize = "a size: 4096, 64MiB, 512MB";
inline constexpr std::string_view kSizeOrAuto = "a size: 4096, 64MiB, 512MB; or auto";
inline constexpr std::string_view kDuration = "a duration: 500ms, 30s, 2min";
inline constexpr std::string_view kDurationOrAuto = "a duration: 500ms, 30s, 2min; or auto";
inline constexpr std::string_view kNumber = "a whole number";
inline constexpr std::string_view kSwitch = "true or false";
inline constexpr std::string_view kPath = "a path";
inline constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();

inline Status not_one_of(std::string_view names, std::string_view found) {
  return error(StatusCode::kInvalidArgument, "expected ", names, ", found ", shown(found));
}

inline Status check_within(std::uint64_t value, std::uint64_t least, std::uint64_t most) {
  if (value >= least && value <= most) return {};
  return error(StatusCode::kInvalidArgument, "expected a size from ", size_text(least), " to ",
               size_text(most), ", found ", size_text(value));
}

inline Result<Milliseconds> parse_wait(std::string_view text) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Milliseconds wait, parse_duration(text));
  if (wait.count() == 0) return parse_duration("");  // the same words
  return wait;
}

// Each maker below takes `Access`, a lambda from (config, item) to the field, so that one field is
// named once for reading and for printing.

template <auto Access, const auto& Choices>
constexpr ConfigKey choice_key(std::string_view name, std::string_view names,
                               std::string_view help) {
  return {name,
          names,
          "",
          help,
          [](Config& config, std::size_t item, std::string_view value) -> Status {
            for (const auto& [text, choice] : Choices) {
              if (text != value) continue;
              Access(config, item) = choice;
              return {};
            }
            std::string expected;
            for (const auto& [text, choice] : Choices) {
              expected += concat(expected.empty() ? "" : " or ", text);
            }
            return not_one_of(expected, value);
          },
          [](const Config& config, std::size_t item) -> std::string {
            for (const auto& [text, choice] : Choices) {
              if (choice == Access(config, item)) return std::string(text);
            }
            return "";
          }};
}

template <auto Access, std::uint64_t kLeast, std::uint64_t kLargest>
constexpr ConfigKey size_key(std::string_view name, std::string_view help) {
  return {name,
          kSize,
          "",
          help,
          [](Config& config, std::size_t item, std::string_view value) -> Status {
            DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t size, parse_size(value));
            DRIFTLESS_RETURN_IF_ERROR(check_within(size, kLeast, kLargest));
            Access(config, item) = size;
            return {};
          },
          [](const Config& config, std::size_t item) { return size_text(Access(config, item)); }};
}

template <auto Access, std::uint64_t kLeast = 0, std::uint64_t kLargest = kMost>
constexpr ConfigKey count_key(std::string_view name, std::string_view help) {
  return {
      name,
      kNumber,
      "",
      help,
      [](Config& config, std::size_t item, std::string_view value) -> Status {
        DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t count, parse_count(value, kLeast, kLargest));
        auto& field = Access(config, item);
        field = static_cast<std::remove_reference_t<decltype(field)>>(count);
        return {};
      },
      [](const Config& config, std::size_t item) { return std::to_string(Access(config, item)); }};
}

template <auto Access>
constexpr ConfigKey duration_key(std::string_view name, std::string_view help) {
  return {
      name,
      kDuration,
      "",
      help,
      [](Config& config, std::size_t item, std::string_view value) -> Status {
        DRIFTLESS_ASSIGN_OR_RETURN(Access(config, item), parse_wait(value));
        return {};
      },
      [](const Config& config, std::size_t item) { return duration_text(Access(config, item)); }};
}

template <auto Access>
constexpr ConfigKey switch_key(std::string_view name, std::string_view help) {
  return {name,
          kSwitch,
          "",
          help,
          [](Config& config, std::size_t item, std::string_view value) -> Status {
            DRIFTLESS_ASSIGN_OR_RETURN(Access(config, item), parse_bool(value));
            return {};
          },
          [](const Config& config, std::size_t item) -> std::string {
            return Access(config, item) ? "true" : "false";
          }};
}

template <auto Access>
constexpr ConfigKey text_key(std::string_view name, std::string_view expected,
                             std::string_view help) {
  return {name,
          expected,
          "",
          help,
          [](Config& config, std::size_t item, std::string_view value) -> Status {
            const bool control = std::any_of(value.begin(), value.end(), [](char c) {
              return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
            });
            if (control || value.size() > 4096) {
              return error(StatusCode::kInvalidArgument,
                           "expected one line of at most 4096 bytes, found ", shown(value));
            }
            Access(config, item) = value;
            return {};
          },
          [](const Config& config, std::size_t item) { return Access(config, item); }};
}

// Durations that roads have each for themselves, with defaults of their own.
template <auto Field>
constexpr ConfigKey road_duration_key(std::string_view name, std::string_view help) {
  return {name,
          kDurationOrAuto,
          kAuto,
          help,
          [](Config& config, std::size_t, std::string_view value) -> Status {
            if (value == kAuto) return {};
            DRIFTLESS_ASSIGN_OR_RETURN(const Milliseconds wait, parse_wait(value));
            Field(config.shared_fs) = wait;
            Field(config.mpi_rma) = Field(config.host_shm) = wait;
            return {};
          },
          [](const Config& config, std::size_t) {
            if (config.road == kSharedFs) return duration_text(Field(config.shared_fs));
            if (config.road == kHostShm) return duration_text(Field(config.host_shm));
            return duration_text(Field(config.mpi_rma));
          }};
}

}  // namespace driftless::config_key
