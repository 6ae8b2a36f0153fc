// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "formats/version_dir.h"

namespace driftless {
namespace {

constexpr std::string_view kPrefix = "weight_v";
constexpr std::string_view kLockName = ".driftless-publisher.lock";
constexpr std::chrono::milliseconds kLockWait(2000);

// What a publisher that died left behind. Only called with the publishers' lock held.
Status remove_stale(FileSystem& fs, const std::string& directory) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  for (const std::string& name : names) {
    if (name.starts_with(concat(".", kPrefix)) && name.ends_with(".tmp")) {
      DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, join_path(directory, name)));
    }
  }
  return {};
}

}  // namespace

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
  DRIFTLESS_RETURN_IF_ERROR(make_directories(fs, directory));
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
  // Who takes over has the lock first, and then removes hidden directories: the renaming fails
  // then.
  DRIFTLESS_ASSIGN_OR_RETURN(const bool held, lock_->held());
  if (!held) {
    return error(StatusCode::kWrongRun, join_path(directory_, kLockName),
                 ": was removed or replaced, so another process may publish here; nothing was "
                 "published: try again once no other does, or use another directory");
  }
  DRIFTLESS_RETURN_IF_ERROR(fs_->rename_directory(hidden_path_, final_path_));
  published_ = true;
  return fs_->sync_directory(directory_);
}

}  // namespace driftless
