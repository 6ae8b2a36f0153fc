// SPDX-License-Identifier: Apache-2.0
#include "formats/version_dir.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "core/new_directory.h"
#include "core/parallel.h"
#include "formats/checkpoint.h"
#include "formats/flush_file.h"

namespace driftless {
namespace {

constexpr std::string_view kPrefix = "weight_v";
constexpr std::string_view kLockName = ".driftless-publisher.lock";
constexpr std::chrono::milliseconds kLockWait(2000);
constexpr std::uint64_t kMaxIndexBytes = 256ULL << 20;
constexpr std::uint64_t kMaxDoneBytes = 4096;

bool is_payload(std::string_view name, DirectoryLayout layout) {
  switch (layout) {
    case DirectoryLayout::kHfDelta:
    case DirectoryLayout::kFlush: return name.ends_with(".safetensors");
    case DirectoryLayout::kFrames: return name.ends_with(".frame");
    case DirectoryLayout::kHdf5: return name == kHdf5Name;
  }
  return false;
}

Status incomplete(const std::string& path, std::string_view missing) {
  return error(StatusCode::kIncomplete, path, ": ", missing,
               " is not there (yet); wait until the version is whole, then try again");
}

// A version's directory and its files must not be links: the target may belong to another run, and
// change unnoticed.
Status check_not_link(FileSystem& fs, const std::string& path) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(path));
  if (info.kind != FileKind::kSymlink) return {};
  return error(StatusCode::kInvalidArgument, path,
               ": is a symbolic link, which no version may contain; copy its target (cp -rL)");
}

// The manifest, after DONE has confirmed that it is the published one.
Result<Manifest> read_manifest(FileSystem& fs, const std::string& path, std::uint64_t version) {
  if (!exists(fs, join_path(path, kDoneName))) return incomplete(path, kDoneName);
  const std::string manifest_path = join_path(path, kManifestName);
  DRIFTLESS_RETURN_IF_ERROR(check_not_link(fs, manifest_path));
  DRIFTLESS_RETURN_IF_ERROR(check_not_link(fs, join_path(path, kDoneName)));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                             read_text(fs, manifest_path, kMaxManifestBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string done,
                             read_text(fs, join_path(path, kDoneName), kMaxDoneBytes));
  const std::string found = to_hex(xxh3_128(text));
  if (done != found + "\n") {
    return error(StatusCode::kCorrupt, manifest_path, ": its xxh3-128 is ", found,
                 ", but DONE says otherwise; fetch the version again");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(Manifest manifest, parse_manifest(text, manifest_path));
  if (manifest.id.version != version) {
    return error(StatusCode::kCorrupt, manifest_path, ": says version ", manifest.id.version,
                 ", but lies in the directory of version ", version);
  }
  return manifest;
}

// Checks sizes and names against the manifest. Ignores files that are not payload.
Status check_files(FileSystem& fs, const VersionDirectory& version) {
  if (version.directory_layout == DirectoryLayout::kHdf5) {
    return version.payload_files.empty() ? incomplete(version.path, kHdf5Name) : Status();
  }
  std::set<std::string_view> expected;
  for (const ManifestFile& file : version.manifest->files) {
    expected.insert(file.name);
    const std::string path = join_path(version.path, file.name);
    if (!exists(fs, path)) return incomplete(version.path, file.name);
    DRIFTLESS_RETURN_IF_ERROR(check_not_link(fs, path));
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile mapped, fs.map(path));
    if (mapped.bytes().size() != file.size_bytes) {
      return error(StatusCode::kCorrupt, path, ": has ", mapped.bytes().size(),
                   " bytes, the manifest says ", file.size_bytes, "; fetch the version again");
    }
  }
  for (const std::string& name : version.payload_files) {
    if (!expected.contains(name)) {
      return error(StatusCode::kCorrupt, join_path(version.path, name),
                   ": not one of the files that the manifest names");
    }
  }
  return {};
}

// "model-00000-of-00003.safetensors": all T files must be there.
Status check_shard_count(const VersionDirectory& version) {
  for (const std::string& name : version.payload_files) {
    const std::size_t of = name.rfind("-of-");
    unsigned total = 0;
    if (of == std::string::npos || !name.starts_with("model-")) continue;
    const char* const begin = name.data() + of + 4;
    const auto parsed = std::from_chars(begin, name.data() + name.size(), total);
    if (parsed.ec == std::errc() && std::string_view(parsed.ptr) == ".safetensors" &&
        total != version.payload_files.size()) {
      return error(StatusCode::kIncomplete, version.path, ": ", name, " is one of ", total,
                   " files, but ", version.payload_files.size(),
                   " are there; wait until the version is whole, then try again");
    }
  }
  return {};
}

Status open_hf_delta(FileSystem& fs, VersionDirectory& version) {
  const std::string index_path = join_path(version.path, kIndexName);
  DRIFTLESS_RETURN_IF_ERROR(check_not_link(fs, index_path));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, read_text(fs, index_path, kMaxIndexBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(HfDeltaIndex index, parse_index(text, version.version, index_path));
  if (index.ours && !version.manifest) return incomplete(version.path, kManifestName);
  version.encoding = index.encoding.value_or(Encoding::kFull);
  version.checksum = index.checksum;
  version.base_version = index.base_version;
  version.weight_map = std::move(index.weight_map);
  for (const auto& [tensor, file] : version.weight_map) {
    if (!std::binary_search(version.payload_files.begin(), version.payload_files.end(), file)) {
      return incomplete(version.path, concat(file, " (which holds tensor '", tensor, "')"));
    }
  }
  return check_shard_count(version);
}

// Flush files have no index: each rank's files must be numbered from 0 without a gap.
Status check_flush_numbers(const VersionDirectory& version) {
  std::uint32_t rank = 0;
  std::uint32_t flush = 0;
  for (const std::string& name : version.payload_files) {
    unsigned found_rank = 0;
    unsigned found_flush = 0;
    if (std::sscanf(name.c_str(), "rank%u_flush%u.safetensors", &found_rank, &found_flush) != 2 ||
        flush_file_name(found_rank, found_flush) != name) {
      return error(StatusCode::kCorrupt, join_path(version.path, name),
                   ": not a name of a flush file");
    }
    flush = found_rank == rank ? flush : 0;
    rank = found_rank;
    if (found_flush != flush) return incomplete(version.path, flush_file_name(rank, flush));
    ++flush;
  }
  return {};
}

// Opens another software's checkpoint without an index: if the names show that all files are there,
// their headers replace the index. Half-written files have other names (slime), or are too short.
Status open_without_index(FileSystem& fs, VersionDirectory& version) {
  const std::vector<std::string>& names = version.payload_files;
  const bool one = names.size() == 1 && names.front() == "model.safetensors";
  const bool numbered = !names.empty() && std::ranges::all_of(names, [](const std::string& name) {
    return name.starts_with("model-") && name.find("-of-") != std::string::npos;
  });
  if (version.manifest || (!one && !numbered)) return incomplete(version.path, kIndexName);
  DRIFTLESS_RETURN_IF_ERROR(check_shard_count(version));
  version.encoding = Encoding::kFull;
  for (const std::string& name : names) {
    DRIFTLESS_ASSIGN_OR_RETURN(MappedFile file, fs.map(join_path(version.path, name)));
    DRIFTLESS_ASSIGN_OR_RETURN(const SafetensorsFile shard, SafetensorsFile::open(std::move(file)));
    if (shard.header().metadata.contains(std::string(kOursKey))) {
      return incomplete(version.path, kIndexName);
    }
    for (const SafetensorsEntry& entry : shard.header().tensors) {
      // A tensor with a checksum in the metadata is part of a delta, whose index is still to come.
      if (shard.header().metadata.contains(entry.spec.name)) {
        return incomplete(version.path, kIndexName);
      }
      if (version.weight_map.emplace(entry.spec.name, name).second) continue;
      return error(StatusCode::kCorrupt, join_path(version.path, name), ": tensor '",
                   entry.spec.name, "' is also in ", version.weight_map[entry.spec.name]);
    }
  }
  return {};
}

Status open_flush(VersionDirectory& version) {
  if (!version.manifest) {
    if (version.payload_files.empty()) return incomplete(version.path, "a payload file");
    // The files do not name their base; by the rule of this format it is the version before.
    version.base_version = version.version - 1;
    version.encoding = Encoding::kIndices;  // each file states its own
  }
  return check_flush_numbers(version);
}

// The manifest is authoritative; the index must agree with it.
Status adopt_manifest(VersionDirectory& version) {
  const Manifest& manifest = *version.manifest;
  if (version.directory_layout == DirectoryLayout::kHfDelta &&
      (version.encoding != manifest.encoding ||
       (!version.full() && (version.checksum != manifest.checksum ||
                            version.base_version != manifest.base_version)))) {
    return error(StatusCode::kCorrupt, version.path,
                 ": the index and the manifest contradict each other");
  }
  version.base_version = manifest.base_version;
  version.encoding = manifest.encoding;
  version.checksum = manifest.checksum;
  return {};
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Reads the manifest, if there is one, and lists the payload files for its layout; checks that all
// are there.
Status read_contents(FileSystem& fs, const std::vector<std::string>& names,
                     VersionDirectory& version) {
  if (contains(names, kDoneName) && !contains(names, kManifestName)) {
    DRIFTLESS_RETURN_IF_ERROR(check_not_link(fs, join_path(version.path, kDoneName)));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string done,
                               read_text(fs, join_path(version.path, kDoneName), kMaxDoneBytes));
    // A DONE of Driftless names a manifest, which is still to come; that of other software only
    // means that the writer has finished.
    if (hash128_from_hex(done.substr(0, done.find('\n'))).ok()) {
      return incomplete(version.path, kManifestName);
    }
  }
  if (contains(names, kManifestName)) {
    DRIFTLESS_ASSIGN_OR_RETURN(version.manifest, read_manifest(fs, version.path, version.version));
    version.directory_layout = version.manifest->directory_layout;
  }
  for (const std::string& name : names) {
    // Only Driftless writes these, and always with a manifest.
    if (!version.manifest &&
        (is_payload(name, DirectoryLayout::kFrames) || is_payload(name, DirectoryLayout::kHdf5))) {
      return incomplete(version.path, kManifestName);
    }
    if (!is_payload(name, version.directory_layout)) continue;
    DRIFTLESS_RETURN_IF_ERROR(check_not_link(fs, join_path(version.path, name)));
    version.payload_files.push_back(name);
  }
  return version.manifest ? check_files(fs, version) : Status();
}

// Whether the version consists of flush files, which other software writes without a manifest.
bool looks_like_flush(const VersionDirectory& version) {
  return !version.payload_files.empty() &&
         version.payload_files.front().find("_flush") != std::string::npos;
}

// Removes what a dead publisher left. Called only with the publishers' lock held.
Status remove_stale(FileSystem& fs, const std::string& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  for (const std::string& name : names) {
    if (name.starts_with(concat(".", kPrefix)) && name.ends_with(".tmp")) {
      DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, join_path(directory, name)));
    }
  }
  return {};
}

// A delta states its encoding, a full version does not.
Status read_delta_metadata(const Json& metadata, std::uint64_t version, std::string_view what,
                           HfDeltaIndex& index) {
  const auto number = [&](std::string_view key) -> Result<std::uint64_t> {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string text, json_string(metadata, key, what));
    return parse_version_string(text).with_context(what);
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

std::string version_directory_name(std::uint64_t version) {
  return concat(kPrefix, version_string(version));
}

Result<std::vector<std::uint64_t>> list_versions(FileSystem& fs, const std::string& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  std::vector<std::uint64_t> versions;
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix)) continue;
    const Result<std::uint64_t> version = parse_version_string(name.substr(kPrefix.size()));
    if (version.ok() && version_directory_name(*version) == name) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

VersionWriter::VersionWriter(FileSystem& fs, std::string directory, std::uint64_t version)
    : fs_(&fs),
      directory_(std::move(directory)),
      final_path_(join_path(directory_, version_directory_name(version))),
      hidden_path_(join_path(directory_, concat(".", version_directory_name(version), ".",
                                                to_hex(random_hash128()), ".tmp"))) {}

Result<VersionWriter> VersionWriter::create(FileSystem& fs, const std::string& directory,
                                            std::uint64_t version) {
  DRIFTLESS_RETURN_IF_ERROR(make_last_directory(fs, directory).status());
  VersionWriter writer(fs, directory, version);
  DRIFTLESS_ASSIGN_OR_RETURN(writer.lock_, fs.lock(join_path(directory, kLockName), kLockWait));
  DRIFTLESS_RETURN_IF_ERROR(remove_stale(fs, directory));
  if (exists(fs, writer.final_path_)) {
    return error(StatusCode::kAlreadyExists, writer.final_path_,
                 ": the version is there already, and versions are never overwritten; choose "
                 "another number or another directory");
  }
  DRIFTLESS_RETURN_IF_ERROR(fs.make_directory(writer.hidden_path_));
  return writer;
}

VersionWriter::~VersionWriter() {
  if (lock_ == nullptr || published_) return;
  const Status ignored = remove_tree(*fs_, hidden_path_);  // the next publisher tries again
}

std::string VersionWriter::file_path(std::string_view name) const {
  return join_path(hidden_path_, name);
}

Status VersionWriter::publish(Manifest& manifest) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->list(hidden_path_));
  manifest.files.clear();
  for (const std::string& name : names) {
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile file, fs_->map(file_path(name)));
    manifest.files.push_back({name, file.bytes().size(), xxh3_128(file.bytes())});
  }
  const std::string text = manifest_to_json(manifest);
  DRIFTLESS_RETURN_IF_ERROR(write_text(*fs_, file_path(kManifestName), text));
  DRIFTLESS_RETURN_IF_ERROR(
      write_text(*fs_, file_path(kDoneName), concat(to_hex(xxh3_128(text)), "\n")));
  DRIFTLESS_RETURN_IF_ERROR(fs_->sync_directory(hidden_path_));
  // If another publisher takes the lock after this check, it removes the hidden directory before it
  // publishes, and then rename_new() fails.
  DRIFTLESS_ASSIGN_OR_RETURN(const bool held, lock_->held());
  if (!held) {
    return error(StatusCode::kWrongRun, join_path(directory_, kLockName),
                 ": was removed or replaced, so another process may publish here. Nothing was "
                 "published; try again when it has ended, or use another directory");
  }
  DRIFTLESS_RETURN_IF_ERROR(fs_->rename_new(hidden_path_, final_path_));
  published_ = true;
  return fs_->sync_directory(directory_);
}

Result<VersionDirectory> open_version(FileSystem& fs, const std::string& directory,
                                      std::uint64_t number) {
  VersionDirectory version;
  version.path = join_path(directory, version_directory_name(number));
  version.version = number;
  if (number == 0) {
    return error(StatusCode::kInvalidArgument, version.path,
                 ": version 0 is the base checkpoint and is never published");
  }
  if (!exists(fs, version.path)) {
    return error(StatusCode::kNotFound, version.path, ": there is no version ", number);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_not_link(fs, version.path));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(version.path));
  DRIFTLESS_RETURN_IF_ERROR(read_contents(fs, names, version));
  if (!version.manifest && looks_like_flush(version)) {
    version.directory_layout = DirectoryLayout::kFlush;
  }
  if (version.directory_layout == DirectoryLayout::kFlush) {
    DRIFTLESS_RETURN_IF_ERROR(open_flush(version));
    version.open_ended = !version.manifest && !contains(names, kDoneName);
  } else if (version.directory_layout == DirectoryLayout::kHfDelta) {
    DRIFTLESS_RETURN_IF_ERROR(contains(names, kIndexName) ? open_hf_delta(fs, version)
                                                          : open_without_index(fs, version));
  }
  if (version.manifest) DRIFTLESS_RETURN_IF_ERROR(adopt_manifest(version));
  return version;
}

Status check_has_files(const VersionDirectory& version) {
  if (version.directory_layout != DirectoryLayout::kHdf5) return {};
  return error(StatusCode::kUnsupported, version.path, ": layout hdf5: its parts are datasets of ",
               kHdf5Name, "; follow it with driftless rollout, road.layout: hdf5");
}

Status check_file_hashes(FileSystem& fs, const VersionDirectory& version, unsigned threads) {
  if (!version.manifest) return {};
  DRIFTLESS_RETURN_IF_ERROR(check_has_files(version));
  const std::vector<ManifestFile>& files = version.manifest->files;
  return parallel_for(files.size(), threads, [&](std::size_t i, unsigned) -> Status {
    const std::string path = join_path(version.path, files[i].name);
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile file, fs.map(path));
    const Hash128 found = xxh3_128(file.bytes());
    if (found == files[i].hash) return {};
    return error(StatusCode::kCorrupt, path, ": its xxh3-128 is ", to_hex(found),
                 ", the manifest says ", to_hex(files[i].hash), "; fetch the version again");
  });
}

}  // namespace driftless
