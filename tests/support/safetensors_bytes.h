// SPDX-License-Identifier: Apache-2.0
// safetensors files that are assembled by hand, valid or not, for tests of readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless::testing {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A header's entry; shape and offsets are JSON: "[2,3]".
inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
  return concat('"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)",
                offsets, '}');
}

// {first,second,...}
inline std::string object(std::initializer_list<std::string> members) {
  std::string text = "{";
  for (const std::string& member : members) {
    if (text.size() > 1) text += ',';
    text += member;
  }
  return text + "}";
}

// A file with this header, valid or not, and data "abc..xyzabc..".
inline std::string file_of(std::string_view header, std::uint64_t data_bytes) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  file += header;
  for (std::uint64_t i = 0; i < data_bytes; ++i) file += static_cast<char>('a' + i % 26);
  return file;
}

}  // namespace driftless::testing
