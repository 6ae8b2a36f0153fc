// SPDX-License-Identifier: Apache-2.0
#include "formats/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/quantize_rule.h"
#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::string_view kFormatName = "driftless-manifest";
constexpr std::string_view kLayoutNames[] = {"hf_delta", "flush", "frames", "hdf5"};  // as the enum

constexpr std::pair<const char*, std::uint64_t Manifest::*> kCounts[] = {
    {"changed_tensors", &Manifest::changed_tensors}, {"changed_units", &Manifest::changed_units},
    {"total_units", &Manifest::total_units},         {"full_bytes", &Manifest::full_bytes},
    {"payload_bytes", &Manifest::payload_bytes},
};

// Reads a number that is written only if it is not `absent`.
Result<std::uint64_t> optional_u64(const Json& object, std::string_view key, std::uint64_t absent,
                                   std::uint64_t most, std::string_view what) {
  if (!object.is_object() || !object.contains(key)) return absent;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t value, json_u64(object, key, what));
  if (value <= most) return value;
  return error(StatusCode::kCorrupt, what, ": '", key, "' is ", value, ", at most ", most,
               " is expected");
}

// The items of a list, which must ascend by name.
template <typename T, typename Read>
Status read_sorted(const Json& json, std::string_view key, std::string_view what,
                   std::vector<T>& items, const Read& read) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* list, json_array(json, key, what));
  for (const Json& each : *list) {
    T item;
    DRIFTLESS_ASSIGN_OR_RETURN(item.name, json_string(each, "name", what));
    DRIFTLESS_RETURN_IF_ERROR(read(each, item));
    if (!items.empty() && items.back().name >= item.name) {
      return error(StatusCode::kCorrupt, what, ": the ", key, " are not sorted, or '", item.name,
                   "' appears twice");
    }
    items.push_back(std::move(item));
  }
  return {};
}

Status read_files(const Json& json, std::string_view what, Manifest& manifest) {
  constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
  const auto read = [&](const Json& item, ManifestFile& file) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_file_name(file.name).with_context(what));
    DRIFTLESS_ASSIGN_OR_RETURN(file.size_bytes, json_u64(item, "size_bytes", what));
    DRIFTLESS_ASSIGN_OR_RETURN(file.hash, json_hash128(item, "xxh3_128", what));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t rank,
                               optional_u64(item, "rank", 0, manifest.ranks - std::uint64_t{1},
                                            concat(what, ": '", file.name, "'")));
    file.rank = static_cast<std::uint32_t>(rank);
    DRIFTLESS_ASSIGN_OR_RETURN(file.locator, optional_u64(item, "locator", 0, kAny, what));
    if (item.contains("table")) {
      DRIFTLESS_ASSIGN_OR_RETURN(file.table, json_hash128(item, "table", what));
    }
    if (const auto partial = item.find("partial"); partial != item.end()) {
      if (!partial->is_boolean()) {
        return error(StatusCode::kCorrupt, what, ": 'partial' of '", file.name,
                     "' is neither true nor false");
      }
      file.partial = partial->get<bool>();
    }
    return {};
  };
  return read_sorted(json, "files", what, manifest.files, read);
}

// Either all tensors have a digest or none. If they have, a delta lists the tensors that it
// changes, and a full version lists all tensors.
Status check_tensor_digests(std::string_view what, const Manifest& manifest) {
  std::uint64_t digests = 0;
  Digest sum;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (!tensor.digest) continue;
    ++digests;
    sum += *tensor.digest;
  }
  if (digests == 0) return {};
  if (digests != manifest.tensors.size()) {
    return error(StatusCode::kCorrupt, what, ": ", digests, " of ", manifest.tensors.size(),
                 " tensors have a digest; all must, or none");
  }
  const bool full = manifest.encoding == Encoding::kFull;
  if (!full && digests != manifest.changed_tensors) {
    return error(StatusCode::kCorrupt, what, ": ", digests, " tensors have a digest, but ",
                 manifest.changed_tensors, " changed");
  }
  if (!full || sum == manifest.digest) return {};
  return error(StatusCode::kCorrupt, what, ": the digests of its tensors add up to ", to_hex(sum),
               ", but 'digest' is ", to_hex(manifest.digest));
}

Status read_tensors(const Json& json, std::string_view what, Manifest& manifest) {
  const auto read = [&](const Json& item, ManifestTensor& tensor) -> Status {
    DRIFTLESS_RETURN_IF_ERROR(check_tensor_name(tensor.name).with_context(what));
    if (item.contains("digest")) {
      DRIFTLESS_ASSIGN_OR_RETURN(tensor.digest, json_digest(item, "digest", what));
      if (!item.contains("checksum")) return {};
    }
    DRIFTLESS_ASSIGN_OR_RETURN(tensor.checksum, json_string(item, "checksum", what));
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(read_sorted(json, "tensors", what, manifest.tensors, read));
  return check_tensor_digests(what, manifest);
}

Status read_identity(const Json& json, std::string_view what, Manifest& manifest) {
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.id.run, json_hash128(json, "run", what));
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.id.version, json_u64(json, "version", what));
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.base_version, json_u64(json, "base_version", what));
  // An anchor is its own base: it needs no earlier version.
  const bool anchor = manifest.encoding == Encoding::kFull;
  const bool ordered = manifest.base_version < manifest.id.version ||
                       (anchor && manifest.base_version == manifest.id.version);
  if (manifest.id.run.is_zero() || !ordered) {
    return error(StatusCode::kCorrupt, what, ": run ", to_hex(manifest.id.run), ", version ",
                 manifest.id.version, ", base ", manifest.base_version,
                 ": the run must not be zero and the base must be below the version");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.layout, json_hash128(json, "weight_layout", what));
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.base_digest, json_digest(json, "base_digest", what));
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.digest, json_digest(json, "digest", what));
  constexpr std::uint64_t kMostRanks = std::numeric_limits<std::uint32_t>::max();
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t ranks,
                             optional_u64(json, "ranks", 1, kMostRanks, what));
  if (ranks == 0) return error(StatusCode::kCorrupt, what, ": 'ranks' is 0");
  manifest.ranks = static_cast<std::uint32_t>(ranks);
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.quantize_rule,
                             json_optional_string(json, "quantize_rule", kMaxRuleName, what));
  return {};
}

Status read_kinds(const Json& json, std::string_view what, Manifest& manifest) {
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.directory_layout,
                             json_kind(json, "layout", what, parse_directory_layout));
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.encoding, json_kind(json, "encoding", what, parse_encoding));
  DRIFTLESS_ASSIGN_OR_RETURN(manifest.checksum,
                             json_kind(json, "checksum", what, parse_checksum_kind));
  return {};
}

Status read_counts(const Json& json, std::string_view what, Manifest& manifest) {
  for (const auto& [key, count] : kCounts) {
    DRIFTLESS_ASSIGN_OR_RETURN(manifest.*count, json_u64(json, key, what));
  }
  if (manifest.changed_units > manifest.total_units) {
    return error(StatusCode::kCorrupt, what, ": ", manifest.changed_units, " changed of ",
                 manifest.total_units, " units");
  }
  return {};
}

void read_informative(const Json& json, Manifest& manifest) {
  if (const auto created = json.find("created"); created != json.end() && created->is_string()) {
    manifest.created = created->get<std::string>();
  }
  const auto timings = json.find("timings_ms");
  if (timings == json.end() || !timings->is_object()) return;
  for (const auto& [key, value] : timings->items()) {
    if (value.is_number()) manifest.timings_ms[key] = value.get<double>();
  }
}

}  // namespace

std::string_view to_string(DirectoryLayout layout) {
  return kLayoutNames[static_cast<std::size_t>(layout)];
}

Result<DirectoryLayout> parse_directory_layout(std::string_view name) {
  const auto* const at = std::ranges::find(kLayoutNames, name);
  if (at != std::end(kLayoutNames)) return static_cast<DirectoryLayout>(at - kLayoutNames);
  return error(StatusCode::kInvalidArgument, "unknown layout '", name,
               "'; known are hf_delta, flush, frames and hdf5");
}

std::uint64_t payload_of(const Manifest& manifest) {
  // Directories for other software contain additional files.
  const bool mixed = manifest.directory_layout == DirectoryLayout::kHfDelta ||
                     manifest.directory_layout == DirectoryLayout::kFlush;
  std::uint64_t sum = 0;
  for (const ManifestFile& file : manifest.files) {
    if (!mixed || file.name.ends_with(".safetensors")) sum += file.size_bytes;
  }
  return sum;
}

std::string manifest_to_json(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormatName;
  json["format_version"] = kManifestFormat;
  json["run"] = to_hex(manifest.id.run);
  json["version"] = manifest.id.version;
  json["base_version"] = manifest.base_version;
  json["layout"] = to_string(manifest.directory_layout);
  json["encoding"] = info(manifest.encoding).name;
  json["checksum"] = to_string(manifest.checksum);
  json["weight_layout"] = to_hex(manifest.layout);
  json["base_digest"] = to_hex(manifest.base_digest);
  json["digest"] = to_hex(manifest.digest);
  if (manifest.ranks != 1) json["ranks"] = manifest.ranks;
  if (!manifest.quantize_rule.empty()) json["quantize_rule"] = manifest.quantize_rule;
  for (const auto& [key, count] : kCounts) json[key] = manifest.*count;
  json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    nlohmann::ordered_json& item = json["files"].emplace_back();
    item["name"] = file.name;
    item["size_bytes"] = file.size_bytes;
    item["xxh3_128"] = to_hex(file.hash);
    if (file.rank != 0) item["rank"] = file.rank;
    if (file.locator != 0) item["locator"] = file.locator;
    if (file.table) item["table"] = to_hex(*file.table);
    if (file.partial) item["partial"] = true;
  }
  json["tensors"] = nlohmann::ordered_json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    nlohmann::ordered_json& item = json["tensors"].emplace_back();
    item["name"] = tensor.name;
    if (!tensor.checksum.empty() || !tensor.digest) item["checksum"] = tensor.checksum;
    if (tensor.digest) item["digest"] = to_hex(*tensor.digest);
  }
  json["timings_ms"] = manifest.timings_ms;
  json["created"] = manifest.created;
  return json.dump() + "\n";
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view what) {
  if (text.size() > kMaxManifestBytes) {
    return error(StatusCode::kCorrupt, what, ": ", text.size(), " bytes, at most ",
                 kMaxManifestBytes, " are expected");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(text, what));
  DRIFTLESS_RETURN_IF_ERROR(json_check_format(json, what, kFormatName, kManifestFormat));
  Manifest manifest;
  DRIFTLESS_RETURN_IF_ERROR(read_kinds(json, what, manifest));
  DRIFTLESS_RETURN_IF_ERROR(read_identity(json, what, manifest));
  DRIFTLESS_RETURN_IF_ERROR(read_counts(json, what, manifest));
  DRIFTLESS_RETURN_IF_ERROR(read_files(json, what, manifest));
  DRIFTLESS_RETURN_IF_ERROR(read_tensors(json, what, manifest));
  read_informative(json, manifest);
  return manifest;
}

}  // namespace driftless
