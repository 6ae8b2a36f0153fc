// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/medium.h"

#include "core/version.h"

namespace driftless::shared_fs {
namespace {

constexpr std::string_view kStepPrefix = "weight_v";
constexpr std::string_view kAnchorPrefix = "anchor_v";
constexpr std::string_view kUsedPrefix = ".used_v";
constexpr std::string_view kHiddenRunPrefix = ".run.";
constexpr std::string_view kDroppedPrefix = ".dropped_";
constexpr std::string_view kHiddenSuffix = ".tmp";
constexpr std::size_t kSessionDigits = 32;

}  // namespace

Status check_options(const SharedFsOptions& options) {
  const std::chrono::milliseconds none(0);
  if (options.dir.empty()) return error(StatusCode::kInvalidArgument, "shared_fs: dir is empty");
  if (options.poll_first <= none || options.poll_longest < options.poll_first) {
    return error(StatusCode::kInvalidArgument,
                 "shared_fs: poll_first must be positive and at most poll_longest");
  }
  if (options.hook_timeout <= none || options.patience <= none || options.lock_wait < none) {
    return error(StatusCode::kInvalidArgument,
                 "shared_fs: hook_timeout and patience must be positive, lock_wait not negative");
  }
  if (options.part_files == 0 || options.part_files > kMostPacks) {
    return error(StatusCode::kInvalidArgument, "shared_fs: part_files must be 1 to ", kMostPacks,
                 ", not ", options.part_files);
  }
  return {};
}

std::string session_in(const std::string& lock) {
  const std::string session = lock.substr(0, kSessionDigits);
  return hash128_from_hex(session).ok() ? session : std::string();
}

std::string owner_in(const std::string& lock) {
  if (session_in(lock).empty()) return "another process";
  const std::size_t end = lock.find_last_not_of(" \n");
  return lock.substr(kSessionDigits + 1, end == std::string::npos ? end : end - kSessionDigits);
}

std::string publication_name(const PublicationId& id) {
  return concat(id.kind == PublicationKind::kAnchor ? kAnchorPrefix : kStepPrefix,
                version_string(id.version));
}

std::optional<PublicationId> parse_publication_name(std::string_view name) {
  PublicationId id;
  if (name.starts_with(kAnchorPrefix)) {
    id.kind = PublicationKind::kAnchor;
  } else if (!name.starts_with(kStepPrefix)) {
    return std::nullopt;
  }
  const auto version = parse_version_string(name.substr(kStepPrefix.size()));
  static_assert(kStepPrefix.size() == kAnchorPrefix.size());
  if (!version.ok()) return std::nullopt;
  id.version = *version;
  if (publication_name(id) != name) return std::nullopt;
  return id;
}

std::string used_name(std::uint64_t version) {
  return concat(kUsedPrefix, version_string(version));
}

std::optional<std::uint64_t> parse_used_name(std::string_view name) {
  if (!name.starts_with(kUsedPrefix)) return std::nullopt;
  const auto version = parse_version_string(name.substr(kUsedPrefix.size()));
  if (!version.ok() || used_name(*version) != name) return std::nullopt;
  return *version;
}

std::string new_hidden_name(const PublicationId& id, std::string_view session) {
  return concat(".", publication_name(id), ".", session, ".", to_hex(random_hash128()),
                kHiddenSuffix);
}

bool is_hidden_name_of(const PublicationId& id, std::string_view session, std::string_view name) {
  return name.starts_with(concat(".", publication_name(id), ".", session, ".")) &&
         name.ends_with(kHiddenSuffix);
}

std::string hidden_run_name(std::string_view session) {
  return concat(kHiddenRunPrefix, session, kHiddenSuffix);
}

bool is_dropped(std::string_view name) {
  return name.starts_with(kDroppedPrefix) && name.ends_with(kHiddenSuffix);
}

bool is_leftover(std::string_view name) {
  const bool hidden = name.starts_with(concat(".", kStepPrefix)) ||
                      name.starts_with(concat(".", kAnchorPrefix)) ||
                      name.starts_with(kDroppedPrefix) || name.starts_with(kHiddenRunPrefix);
  return hidden && name.ends_with(kHiddenSuffix);
}

Result<std::string> drop(FileSystem& fs, const std::string& dir, const std::string& name) {
  const std::string plain = name.starts_with('.') ? name.substr(1) : name;
  std::string dropped = concat(kDroppedPrefix, plain, ".", to_hex(random_hash128()), kHiddenSuffix);
  const Status renamed = fs.rename_new(join_path(dir, name), join_path(dir, dropped));
  if (renamed.code() == StatusCode::kNotFound) return std::string();
  DRIFTLESS_RETURN_IF_ERROR(renamed);
  return dropped;
}

void remove_dropped(FileSystem& fs, const std::string& dir, const std::string& name) {
  if (name.empty()) return;
  const Status ignored = remove_tree(fs, join_path(dir, name));
}

std::string done_text(std::string_view manifest) {
  return concat(to_hex(xxh3_128(manifest)), "\n");
}

Result<std::string> read_small(FileSystem& fs, const std::string& path, std::uint64_t max_bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(path));
  if (info.kind != FileKind::kFile || info.size_bytes > max_bytes) {
    return error(StatusCode::kCorrupt, path,
                 info.kind != FileKind::kFile ? std::string(": not a regular file")
                                              : concat(": ", info.size_bytes, " bytes, at most ",
                                                       max_bytes, " are expected"));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.open_to_read(path));
  std::string text(info.size_bytes, '\0');
  DRIFTLESS_RETURN_IF_ERROR(file->pread(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace driftless::shared_fs
