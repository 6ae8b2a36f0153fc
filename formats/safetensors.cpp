// SPDX-License-Identifier: Apache-2.0
#include "formats/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "formats/strict_json.h"

namespace driftless {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

// An entry of the header; offsets count from the beginning of the data.
struct RawEntry {
  TensorSpec spec;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The JSON text, once its length was checked against the file and the limit.
Result<std::string_view> header_text(std::span<const std::byte> file, std::uint64_t file_bytes,
                                     std::string_view what) {
  if (file_bytes < kLengthBytes || file.size() < kLengthBytes) {
    return error(StatusCode::kCorrupt, what, ": ", file_bytes,
                 " bytes, a safetensors file begins with the 8 bytes of its header's length");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);  // little-endian, like the processor
  if (length > kMaxSafetensorsHeaderBytes) {
    return error(StatusCode::kCorrupt, what, ": a header of ", length, " bytes, at most ",
                 kMaxSafetensorsHeaderBytes, " are allowed; is this a safetensors file?");
  }
  const std::uint64_t present = std::min<std::uint64_t>(file_bytes, file.size()) - kLengthBytes;
  if (length > present) {
    return error(StatusCode::kCorrupt, what, ": the header should have ", length,
                 " bytes, the file ends after ", present, " of them");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) {
    return error(StatusCode::kCorrupt, what, ": the header does not begin with '{' at byte 8");
  }
  return text;
}

Result<DType> entry_dtype(const Json& entry, const std::string& what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string name, json_string(entry, "dtype", what));
  const Result<DType> dtype = parse_dtype(name);
  if (dtype.ok()) return *dtype;
  return error(dtype.status().code(), what, ": unknown dtype ", shown(name));
}

Result<RawEntry> parse_entry(const std::string& name, const Json& entry, std::string_view file) {
  DRIFTLESS_RETURN_IF_ERROR(check_tensor_name(name).with_context(file));
  const std::string what = concat(file, ": tensor ", shown(name, 400));
  DRIFTLESS_ASSIGN_OR_RETURN(const DType dtype, entry_dtype(entry, what));
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::uint64_t> shape, json_u64_list(entry, "shape", what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> offsets,
                             json_u64_list(entry, "data_offsets", what));
  if (entry.size() != 3) {
    return error(StatusCode::kCorrupt, what, ": ", entry.size(),
                 " keys, only dtype, shape and data_offsets are expected");
  }
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return error(StatusCode::kCorrupt, what,
                 ": data_offsets must be [begin, end] with begin <= ", "end, found ",
                 shown(entry.at("data_offsets").dump()));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(TensorSpec spec,
                             TensorSpec::make(name, dtype, std::move(shape)).with_context(file));
  if (spec.size_bytes != offsets[1] - offsets[0]) {
    return error(StatusCode::kCorrupt, what, ": ", info(dtype).name, " of shape ",
                 shown(spec.shape_string()), " has ", spec.size_bytes, " bytes, data_offsets [",
                 offsets[0], ", ", offsets[1], "] hold ", offsets[1] - offsets[0]);
  }
  return RawEntry{std::move(spec), offsets[0], offsets[1]};
}

Result<std::map<std::string, std::string>> parse_metadata(const Json& object,
                                                          std::string_view file) {
  if (!object.is_object()) {
    return error(StatusCode::kCorrupt, file, ": __metadata__ must be an object, found ",
                 object.type_name());
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : object.get_ref<const Json::object_t&>()) {
    if (!value.is_string()) {
      return error(StatusCode::kCorrupt, file, ": __metadata__ ", shown(key),
                   " must be a string, found ", value.type_name());
    }
    metadata.emplace_hint(metadata.end(), key, value.get_ref<const std::string&>());
  }
  return metadata;
}

// The entries, in ascending order, must cover the data from 0 to its end without gaps.
Status check_contiguous(const std::vector<RawEntry>& entries, std::uint64_t data_bytes,
                        std::string_view file) {
  std::uint64_t expected = 0;
  for (const RawEntry& entry : entries) {
    if (entry.begin != expected) {
      return error(StatusCode::kCorrupt, file, ": tensor ", shown(entry.spec.name, 400),
                   " begins at data offset ", entry.begin,
                   entry.begin < expected ? ", inside the tensor before it, which ends at "
                                          : ", after a hole that begins at ",
                   expected);
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    return error(StatusCode::kCorrupt, file, ": the tensors end at data offset ", expected,
                 ", the file's data has ", data_bytes,
                 expected > data_bytes ? " bytes: the file is cut short" : " bytes");
  }
  return {};
}

Result<std::vector<RawEntry>> parse_entries(const Json& root, std::string_view file) {
  std::vector<RawEntry> entries;
  entries.reserve(root.size());
  for (const auto& [name, value] : root.get_ref<const Json::object_t&>()) {
    if (name == kMetadataKey) continue;
    DRIFTLESS_ASSIGN_OR_RETURN(RawEntry entry, parse_entry(name, value, file));
    entries.push_back(std::move(entry));
  }
  // An empty tensor comes before the one that begins at the same offset.
  std::sort(entries.begin(), entries.end(), [](const RawEntry& a, const RawEntry& b) {
    return std::tie(a.begin, a.end, a.spec.name) < std::tie(b.begin, b.end, b.spec.name);
  });
  return entries;
}

// Hashes the header and its length, as far as the file has them.
Hash128 hash_of_header(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  if (file.size() >= kLengthBytes) std::memcpy(&length, file.data(), kLengthBytes);
  const std::uint64_t end = kLengthBytes + std::min(length, kMaxSafetensorsHeaderBytes);
  return xxh3_128(file.first(std::min<std::uint64_t>(end, file.size())));
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> file,
                                                   std::uint64_t file_bytes,
                                                   std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string_view text, header_text(file, file_bytes, what));
  DRIFTLESS_ASSIGN_OR_RETURN(const Json root, parse_json(text, concat(what, ": the header")));
  SafetensorsHeader header;
  header.data_offset = kLengthBytes + text.size();
  if (const auto metadata = root.find(kMetadataKey); metadata != root.end()) {
    DRIFTLESS_ASSIGN_OR_RETURN(header.metadata, parse_metadata(*metadata, what));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<RawEntry> entries, parse_entries(root, what));
  DRIFTLESS_RETURN_IF_ERROR(check_contiguous(entries, file_bytes - header.data_offset, what));
  header.tensors.reserve(entries.size());
  for (RawEntry& entry : entries) {
    header.tensors.push_back({std::move(entry.spec), header.data_offset + entry.begin});
  }
  return header;
}

Result<SafetensorsFile> SafetensorsFile::open(FileSystem& fs, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(MappedFile file, fs.map(path));
  return open(std::move(file));
}

Result<SafetensorsFile> SafetensorsFile::open(MappedFile file) {
  SafetensorsFile opened;
  opened.file_ = std::move(file);
  const std::span<const std::byte> bytes = opened.file_.bytes();
  opened.header_hash_ = hash_of_header(bytes);  // first, so that a later write is noticed
  DRIFTLESS_ASSIGN_OR_RETURN(opened.header_,
                             parse_safetensors_header(bytes, bytes.size(), opened.file_.path()));
  const std::vector<SafetensorsEntry>& tensors = opened.header_.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) opened.index_.emplace(tensors[i].spec.name, i);
  return opened;
}

bool SafetensorsFile::header_unchanged() const {
  return hash_of_header(file_.bytes()) == header_hash_;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &header_.tensors[at->second];
}

}  // namespace driftless
