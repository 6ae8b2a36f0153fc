// JSON from outside, parsed strictly: UTF-8 only, no duplicate keys, at most 64 levels deep,
// nothing after the value. nlohmann's exceptions do not leave strict_json.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

using Json = nlohmann::json;

// `what` names the source in errors: a path, or "header of x.safetensors".
[[nodiscard]] Result<Json> parse_json(std::string_view text, std::string_view what);

// Members of an object; kCorrupt naming `what` and the key where it is missing or of another type.
[[nodiscard]] Result<const Json*> json_member(const Json& object, std::string_view key,
                                              std::string_view what);
[[nodiscard]] Result<std::string> json_string(const Json& object, std::string_view key,
                                              std::string_view what);
[[nodiscard]] Result<std::uint64_t> json_u64(const Json& object, std::string_view key,
                                             std::string_view what);

}  // namespace driftless
