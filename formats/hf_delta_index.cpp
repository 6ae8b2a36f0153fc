// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "core/layout.h"
#include "formats/strict_json.h"
#include "formats/version_dir.h"

namespace driftless {
namespace {

// A delta says how it is encoded, a full version does not.
Status read_delta_metadata(const Json& metadata, std::uint64_t version, std::string_view what,
                           HfDeltaIndex& index) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string number, json_string(metadata, "version", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string base, json_string(metadata, "base_version", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string encoding,
                             json_string(metadata, "delta_encoding", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string compression,
                             json_string(metadata, "compression_format", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string checksum,
                             json_string(metadata, "checksum_format", what));
  const Result<std::uint64_t> parsed_number = parse_version_string(number);
  const Result<std::uint64_t> parsed_base = parse_version_string(base);
  if (!parsed_number.ok()) return parsed_number.status().with_context(what);
  if (!parsed_base.ok()) return parsed_base.status().with_context(what);
  index.version = *parsed_number;
  index.base_version = *parsed_base;
  if (index.version != version || index.base_version >= version) {
    return error(StatusCode::kCorrupt, what, ": says version ", index.version, " on base ",
                 index.base_version, ", but lies in the directory of version ", version);
  }
  const Result<Encoding> parsed_encoding = parse_encoding(encoding);
  const Result<ChecksumKind> parsed_checksum = parse_checksum_kind(checksum);
  if (!parsed_encoding.ok() || !info(*parsed_encoding).interchange) {
    return error(StatusCode::kUnsupported, what, ": delta_encoding '", encoding,
                 "', expected xor or overwrite");
  }
  if (!parsed_checksum.ok()) {
    return error(StatusCode::kUnsupported, what, ": ", parsed_checksum.status().message());
  }
  if (compression != "zstd") {
    return error(StatusCode::kUnsupported, what, ": compression_format '", compression,
                 "', expected zstd");
  }
  index.encoding = *parsed_encoding;
  index.checksum = *parsed_checksum;
  return {};
}

}  // namespace

std::string index_to_json(const HfDeltaIndex& index) {
  nlohmann::ordered_json metadata;
  metadata["version"] = version_string(index.version);
  metadata["base_version"] = version_string(index.base_version);
  if (index.encoding) {
    metadata["delta_encoding"] = info(*index.encoding).name;
    metadata["compression_format"] = "zstd";
    metadata["checksum_format"] = to_string(index.checksum);
  }
  if (index.ours) metadata[kOursKey] = std::to_string(kManifestFormat);
  nlohmann::ordered_json json;
  json["metadata"] = std::move(metadata);
  json["weight_map"] = nlohmann::ordered_json::object();
  for (const auto& [tensor, file] : index.weight_map) json["weight_map"][tensor] = file;
  return json.dump() + "\n";
}

Result<HfDeltaIndex> parse_index(std::string_view text, std::uint64_t version,
                                 std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* weight_map, json_member(json, "weight_map", what));
  if (!weight_map->is_object()) {
    return error(StatusCode::kCorrupt, what, ": 'weight_map' is not an object");
  }
  HfDeltaIndex index;
  index.version = version;
  if (const auto metadata = json.find("metadata"); metadata != json.end()) {
    if (!metadata->is_object()) {
      return error(StatusCode::kCorrupt, what, ": 'metadata' is not an object");
    }
    index.ours = metadata->contains(kOursKey);
    if (metadata->contains("delta_encoding")) {
      DRIFTLESS_RETURN_IF_ERROR(read_delta_metadata(*metadata, version, what, index));
    }
  }
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string()) {
      return error(StatusCode::kCorrupt, what, ": the file of tensor '", tensor,
                   "' is not a string");
    }
    Status status = check_tensor_name(tensor);
    if (status.ok()) status = check_file_name(file.get_ref<const std::string&>());
    if (!status.ok()) return status.with_context(what);
    index.weight_map.emplace(tensor, file.get<std::string>());
  }
  return index;
}

}  // namespace driftless
