// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "formats/checkpoint.h"
#include "formats/version_dir.h"

namespace driftless {
namespace {

// A delta says how it is encoded, a full version does not.
Status read_delta_metadata(const Json& metadata, std::uint64_t version, std::string_view what,
                           HfDeltaIndex& index) {
  const auto number = [&](std::string_view key) -> Result<std::uint64_t> {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, json_string(metadata, key, what));
    Result<std::uint64_t> parsed = parse_version_string(text);
    if (!parsed.ok()) return parsed.status().with_context(what);
    return parsed;
  };
  DRIFTLESS_ASSIGN_OR_RETURN(index.version, number("version"));
  DRIFTLESS_ASSIGN_OR_RETURN(index.base_version, number("base_version"));
  if (index.version != version || index.base_version >= version) {
    return error(StatusCode::kCorrupt, what, ": says version ", index.version, " on base ",
                 index.base_version, ", but lies in the directory of version ", version);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(index.encoding,
                             json_kind(metadata, "delta_encoding", what, parse_encoding));
  if (!info(*index.encoding).interchange) {
    return error(StatusCode::kUnsupported, what, ": delta_encoding '", info(*index.encoding).name,
                 "', expected xor or overwrite");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string compression,
                             json_string(metadata, "compression_format", what));
  if (compression != "zstd") {
    return error(StatusCode::kUnsupported, what, ": compression_format '", compression,
                 "', expected zstd");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(index.checksum,
                             json_kind(metadata, "checksum_format", what, parse_checksum_kind));
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
  HfDeltaIndex index;
  index.version = version;
  DRIFTLESS_ASSIGN_OR_RETURN(index.weight_map, read_weight_map(json, what));
  const auto metadata = json.find("metadata");
  if (metadata == json.end()) return index;
  index.ours = metadata->contains(kOursKey);
  if (metadata->contains("delta_encoding")) {
    DRIFTLESS_RETURN_IF_ERROR(read_delta_metadata(*metadata, version, what, index));
  }
  return index;
}

}  // namespace driftless
