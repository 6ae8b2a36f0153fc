// SPDX-License-Identifier: Apache-2.0
// Parses JSON from outside strictly: UTF-8 without a byte order mark, no duplicate keys at any
// level, at most 64 levels deep, nothing after the value. Exceptions of nlohmann's library do not
// leave strict_json.cpp. Include <nlohmann/json.hpp> in a .cpp file that reads a Json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/hash128.h"
#include "core/setting_values.h"

namespace driftless {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxJsonDepth = 64;

// kCorrupt if the text is not such JSON. `what` names the source in errors: a path, or "header of
// x.safetensors". Numbers that do not fit into 64 bits become floating point, which json_u64()
// refuses.
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view what);

// A string as one line of JSON, with its quotes; kInvalidArgument, naming `what`, if it is not
// UTF-8.
[[nodiscard]] Result<std::string> json_quote(std::string_view text, std::string_view what);

// Members of an object. kCorrupt, naming `what` and the key, if the member is missing or of another
// type.
[[nodiscard]] Result<const Json*> json_member(const Json& object, std::string_view key,
                                              std::string_view what);
[[nodiscard]] Result<std::string> json_string(const Json& object, std::string_view key,
                                              std::string_view what);
// A string of at most `most` bytes; empty if it is missing.
[[nodiscard]] Result<std::string> json_optional_string(const Json& object, std::string_view key,
                                                       std::size_t most, std::string_view what);
[[nodiscard]] Result<std::uint64_t> json_u64(const Json& object, std::string_view key,
                                             std::string_view what);
[[nodiscard]] Result<const Json*> json_array(const Json& object, std::string_view key,
                                             std::string_view what);
[[nodiscard]] Result<const Json*> json_object(const Json& object, std::string_view key,
                                              std::string_view what);
[[nodiscard]] Result<std::vector<std::uint64_t>> json_u64_list(const Json& object,
                                                               std::string_view key,
                                                               std::string_view what);
[[nodiscard]] Result<Hash128> json_hash128(const Json& object, std::string_view key,
                                           std::string_view what);
[[nodiscard]] Result<Digest> json_digest(const Json& object, std::string_view key,
                                         std::string_view what);
// A string that `parse` accepts; kUnsupported with the message of `parse` otherwise.
template <typename T>
[[nodiscard]] Result<T> json_kind(const Json& object, std::string_view key, std::string_view what,
                                  Result<T> (*parse)(std::string_view)) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, json_string(object, key, what));
  Result<T> kind = parse(name);
  if (kind.ok()) return kind;
  return error(StatusCode::kUnsupported, what, ": ", kind.status().message());
}
// 'format' must be `name` and 'format_version' `number`; kUnsupported for another number.
[[nodiscard]] Status json_check_format(const Json& object, std::string_view what,
                                       std::string_view name, std::uint64_t number);

}  // namespace driftless
