// SPDX-License-Identifier: Apache-2.0
#include "formats/strict_json.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace driftless {
namespace {

// Builds the value, and checks keys and depth. The parser does not recurse, so depth costs no
// stack. nlohmann's library prescribes the names of the member functions.
class StrictHandler {
 public:
  bool null() { return place(nullptr); }
  bool boolean(bool value) { return place(value); }
  bool number_integer(Json::number_integer_t value) { return place(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return place(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return place(value); }
  bool string(std::string& value) { return place(std::move(value)); }
  bool binary(Json::binary_t&) { return fail("holds binary data"); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const auto [at, added] = members.try_emplace(std::move(name));
    if (!added) return fail(concat("has the key ", shown(at->first), " twice"));
    member_ = &at->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const std::exception& reason) {
    const std::string_view text(reason.what());
    const std::size_t bracket = text.find("] ");  // after nlohmann's error code
    return fail(
        concat("is not valid JSON at byte ", position, ": ",
               shown(bracket == std::string_view::npos ? text : text.substr(bracket + 2), 200)));
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] Json take() { return std::move(root_); }

 private:
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // Stores the value: as the root, in the member just named, or at the end of the open array.
  Json* put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& elements = open_.back()->get_ref<Json::array_t&>();
      return &elements.emplace_back(std::move(value));
    }
    *member_ = std::move(value);
    return member_;
  }

  template <typename T>
  bool place(T&& value) {
    put(Json(std::forward<T>(value)));
    return true;
  }

  bool open(Json container) {
    if (open_.size() == kMaxJsonDepth) {
      return fail(concat("is more than ", kMaxJsonDepth, " levels deep"));
    }
    open_.push_back(put(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  // The containers being filled, outermost first. An open element is the last of its array, so no
  // array grows while a pointer to one of its elements is in use.
  std::vector<Json*> open_;
  Json* member_ = nullptr;
  std::string problem_;
};

// The description of an unexpected value in errors.
std::string kind_of(const Json& value) {
  return value.is_number() ? value.dump() : std::string(value.type_name());
}

// The member if `is` returns true for it; `expected` describes that in the error.
Result<const Json*> member_that(bool (Json::*is)() const noexcept, std::string_view expected,
                                const Json& object, std::string_view key, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* member, json_member(object, key, what));
  if ((member->*is)()) return member;
  return error(StatusCode::kCorrupt, what, ": '", key, "' must be ", expected, ", found ",
               kind_of(*member));
}

template <typename T>
Result<T> parsed_member(Result<T> (*parse)(std::string_view), const Json& object,
                        std::string_view key, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, json_string(object, key, what));
  return parse(text).with_context(concat(what, ": '", key, "'"));
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  // nlohmann's parser treats a NUL as the end of the text, and skips a byte order mark.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return error(StatusCode::kCorrupt, what, ": is not valid JSON: NUL at byte ", nul);
  }
  if (text.starts_with("\xef\xbb\xbf")) {
    return error(StatusCode::kCorrupt, what, ": starts with a byte order mark");
  }
  try {
    StrictHandler handler;
    if (!Json::sax_parse(text.begin(), text.end(), &handler)) {
      return error(StatusCode::kCorrupt, what, ": ", handler.problem());
    }
    return handler.take();
  } catch (const std::exception& problem) {
    return error(StatusCode::kInternal, what, ": parsing JSON: ", problem.what());
  }
}

Result<std::string> json_quote(std::string_view text, std::string_view what) {
  try {
    return Json(text).dump();
  } catch (const std::exception&) {
    return error(StatusCode::kInvalidArgument, what, ": ", shown(text), " is not UTF-8");
  }
}

Result<const Json*> json_member(const Json& object, std::string_view key, std::string_view what) {
  if (!object.is_object()) {
    return error(StatusCode::kCorrupt, what, ": expected an object with the key '", key,
                 "', found ", object.type_name());
  }
  const auto at = object.find(key);
  if (at == object.end()) {
    return error(StatusCode::kCorrupt, what, ": the key '", key, "' is missing");
  }
  return &*at;
}

Result<std::string> json_string(const Json& object, std::string_view key, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* member,
                             member_that(&Json::is_string, "a string", object, key, what));
  return member->get_ref<const std::string&>();
}

Result<std::string> json_optional_string(const Json& object, std::string_view key, std::size_t most,
                                         std::string_view what) {
  if (!object.is_object() || !object.contains(key)) return std::string();
  DRIFTLESS_ASSIGN_OR_RETURN(std::string text, json_string(object, key, what));
  if (text.size() <= most) return text;
  return error(StatusCode::kCorrupt, what, ": '", key, "' has ", text.size(), " bytes, at most ",
               most, " are expected");
}

Result<std::uint64_t> json_u64(const Json& object, std::string_view key, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Json* member,
      member_that(&Json::is_number_unsigned, "an integer from 0 to 2^64-1", object, key, what));
  return member->get<std::uint64_t>();
}

Result<const Json*> json_array(const Json& object, std::string_view key, std::string_view what) {
  return member_that(&Json::is_array, "a list", object, key, what);
}

Result<const Json*> json_object(const Json& object, std::string_view key, std::string_view what) {
  return member_that(&Json::is_object, "an object", object, key, what);
}

Result<std::vector<std::uint64_t>> json_u64_list(const Json& object, std::string_view key,
                                                 std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* list, json_array(object, key, what));
  for (const Json& number : *list) {
    if (number.is_number_unsigned()) continue;
    return error(StatusCode::kCorrupt, what, ": '", key,
                 "' must hold integers from 0 to 2^64-1, found ", kind_of(number));
  }
  return list->get<std::vector<std::uint64_t>>();
}

Result<Hash128> json_hash128(const Json& object, std::string_view key, std::string_view what) {
  return parsed_member(hash128_from_hex, object, key, what);
}

Result<Digest> json_digest(const Json& object, std::string_view key, std::string_view what) {
  return parsed_member(digest_from_hex, object, key, what);
}

Status json_check_format(const Json& object, std::string_view what, std::string_view name,
                         std::uint64_t number) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string format, json_string(object, "format", what));
  if (format != name) {
    return error(StatusCode::kCorrupt, what, ": 'format' is ", shown(format), ", expected '", name,
                 "'");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t found, json_u64(object, "format_version", what));
  if (found == number) return {};
  return error(StatusCode::kUnsupported, what, ": format version ", found, ", this build reads ",
               number, "; use the same release on both sides");
}

}  // namespace driftless
