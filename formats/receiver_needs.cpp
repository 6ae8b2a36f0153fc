// SPDX-License-Identifier: Apache-2.0
#include "formats/receiver_needs.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/strict_json.h"
#include "formats/zstd_stream.h"

namespace driftless {
namespace {

constexpr std::string_view kFormat = "driftless_needs";
constexpr std::uint64_t kFormatVersion = 1;
constexpr std::uint64_t kMaxContentBytes = std::uint64_t{16} << 20;  // a million tensors and more
constexpr std::size_t kMaxDirectoryBytes = 512;
constexpr std::uint64_t kFirstSlice = 2;  // lower numbers mean all and nothing

Result<std::string> compressed(const nlohmann::ordered_json& json) {
  // A path need not be UTF-8.
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdPacker zstd, ZstdPacker::create());
  std::vector<std::byte> out;
  DRIFTLESS_RETURN_IF_ERROR(zstd.append(std::as_bytes(std::span(text.data(), text.size())), out));
  return std::string(reinterpret_cast<const char*>(out.data()), out.size());
}

Result<bool> json_flag(const Json& json, std::string_view key, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* const value, json_member(json, key, what));
  if (value->is_boolean()) return value->get<bool>();
  return error(StatusCode::kCorrupt, what, ": '", key, "' is neither true nor false");
}

Status read_tensors(const Json& json, std::string_view what, ReceiverNeeds& needs) {
  DRIFTLESS_ASSIGN_OR_RETURN(needs.layout, json_hash128(json, "layout", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> slices,
                             json_u64_list(json, "slices", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> tensors,
                             json_u64_list(json, "tensors", what));
  for (const std::uint64_t each : tensors) {
    TensorNeed& need = needs.tensors.emplace_back();
    if (each < kFirstSlice) {
      need.kind = static_cast<TensorNeed::Kind>(each);
      continue;
    }
    if (each - kFirstSlice >= slices.size() / 3 || slices[3 * (each - kFirstSlice)] > 255 ||
        slices[3 * (each - kFirstSlice) + 2] == 0) {
      return error(StatusCode::kCorrupt, what, ": tensor ", needs.tensors.size() - 1,
                   " names slice ", each - kFirstSlice, " of ", slices.size() / 3,
                   ", which is missing or not valid");
    }
    const std::uint64_t* const slice = &slices[3 * (each - kFirstSlice)];
    need = {TensorNeed::Kind::kSlice, static_cast<std::uint32_t>(slice[0]), slice[1], slice[2]};
  }
  return {};
}

}  // namespace

ReceiverNeeds unknown_needs(const Hash128& run) {
  ReceiverNeeds needs;
  needs.run = run;
  for (const EncodingInfo& each : all_encodings()) {
    if (each.encoding != Encoding::kCompact) needs.encodings.push_back(each.encoding);
  }
  return needs;
}

std::string reported_directory(std::string_view path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text.size() <= kMaxDirectoryBytes ? text : text.substr(text.size() - kMaxDirectoryBytes);
}

std::uint64_t rounded_speed(double per_s) {
  if (!(per_s >= 1)) return 0;
  return static_cast<std::uint64_t>(std::exp2(std::round(8 * std::log2(per_s)) / 8));
}

Result<std::string> needs_to_text(const ReceiverNeeds& needs, std::size_t most_bytes) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["format_version"] = kFormatVersion;
  json["encodings"] = nlohmann::ordered_json::array();
  for (const Encoding encoding : needs.encodings) json["encodings"].push_back(info(encoding).name);
  json["old_values"] = needs.old_values;
  json["ranges"] = needs.ranges;
  if (!needs.run.is_zero()) json["run"] = to_hex(needs.run);
  if (needs.bytes_per_s > 0) json["bytes_per_s"] = needs.bytes_per_s;
  if (needs.units_per_s > 0) json["units_per_s"] = needs.units_per_s;
  if (!needs.checkpoint.empty()) {
    json["checkpoint"] = needs.checkpoint;
    json["host"] = needs.host;
  }
  if (needs.idle) json["idle"] = true;
  if (!needs.tensors.empty()) {
    nlohmann::ordered_json with = json;
    std::map<TensorNeed, std::uint64_t> numbers;
    std::vector<std::uint64_t> slices, tensors;
    for (const TensorNeed& need : needs.tensors) {
      if (need.kind != TensorNeed::Kind::kSlice) {
        tensors.push_back(static_cast<std::uint64_t>(need.kind));
        continue;
      }
      const auto [number, first] = numbers.try_emplace(need, kFirstSlice + numbers.size());
      if (first) slices.insert(slices.end(), {need.dim, need.begin, need.size});
      tensors.push_back(number->second);
    }
    with["layout"] = to_hex(needs.layout);
    with["slices"] = slices;
    with["tensors"] = tensors;
    DRIFTLESS_ASSIGN_OR_RETURN(std::string text, compressed(with));
    if (text.size() <= most_bytes) return text;
  }
  return compressed(json);
}

Result<ReceiverNeeds> parse_needs(std::string_view text, std::string_view what) {
  const Result<std::vector<std::byte>> content =
      zstd_decompress(std::as_bytes(std::span(text.data(), text.size())), kMaxContentBytes);
  if (!content.ok()) return content.status().with_context(what);
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Json json,
      parse_json({reinterpret_cast<const char*>(content->data()), content->size()}, what));
  DRIFTLESS_RETURN_IF_ERROR(json_check_format(json, what, kFormat, kFormatVersion));
  ReceiverNeeds needs;
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* const encodings, json_array(json, "encodings", what));
  for (const Json& each : *encodings) {
    if (!each.is_string()) return error(StatusCode::kCorrupt, what, ": an encoding without a name");
    const Result<Encoding> known = parse_encoding(each.get_ref<const std::string&>());
    if (known.ok()) needs.encodings.push_back(*known);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(needs.old_values, json_flag(json, "old_values", what));
  DRIFTLESS_ASSIGN_OR_RETURN(needs.ranges, json_flag(json, "ranges", what));
  if (json.contains("run")) {
    DRIFTLESS_ASSIGN_OR_RETURN(needs.run, json_hash128(json, "run", what));
  }
  if (json.contains("bytes_per_s")) {
    DRIFTLESS_ASSIGN_OR_RETURN(needs.bytes_per_s, json_u64(json, "bytes_per_s", what));
  }
  if (json.contains("units_per_s")) {
    DRIFTLESS_ASSIGN_OR_RETURN(needs.units_per_s, json_u64(json, "units_per_s", what));
  }
  if (json.contains("checkpoint")) {
    DRIFTLESS_ASSIGN_OR_RETURN(needs.checkpoint, json_string(json, "checkpoint", what));
    DRIFTLESS_ASSIGN_OR_RETURN(needs.host, json_string(json, "host", what));
  }
  if (json.contains("idle")) {
    DRIFTLESS_ASSIGN_OR_RETURN(needs.idle, json_flag(json, "idle", what));
  }
  if (json.contains("tensors")) DRIFTLESS_RETURN_IF_ERROR(read_tensors(json, what, needs));
  return needs;
}

}  // namespace driftless
