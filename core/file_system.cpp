// SPDX-License-Identifier: Apache-2.0
#include "core/file_system.h"

#include <climits>
#include <filesystem>

namespace driftless {
namespace {

// The path with every symbolic link resolved, or an empty string.
std::string resolved(const std::string& path) {
  std::error_code problem;
  return std::filesystem::canonical(path, problem).string();
}

}  // namespace

std::string join_path(std::string_view directory, std::string_view name) {
  if (directory.empty()) return std::string(name);
  return directory.back() == '/' ? concat(directory, name) : concat(directory, "/", name);
}

Status check_file_name(std::string_view name) {
  bool bad = name.empty() || name == "." || name == ".." || name.size() > NAME_MAX;
  for (const char c : name) bad = bad || c == '/' || static_cast<unsigned char>(c) < 0x20;
  if (!bad) return {};
  std::string shown;
  for (const char c : name.substr(0, 80)) shown += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  return error(StatusCode::kCorrupt, "'", shown, "' is not a plain file name");
}

bool exists(FileSystem& fs, const std::string& path) { return fs.info(path).ok(); }

Status make_directories(FileSystem& fs, const std::string& path) {
  if (path.empty() || exists(fs, path)) return {};
  const std::size_t last = path.find_last_not_of('/');
  const std::size_t slash = last == std::string::npos ? last : path.rfind('/', last);
  if (slash != std::string::npos) {
    DRIFTLESS_RETURN_IF_ERROR(make_directories(fs, path.substr(0, slash)));
  }
  const Status status = fs.make_directory(path);
  return status.code() == StatusCode::kAlreadyExists ? Status() : status;
}

Result<std::string> read_text(FileSystem& fs, const std::string& path, std::uint64_t max_bytes) {
  DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile file, fs.map(path));
  if (file.bytes().size() > max_bytes) {
    return error(StatusCode::kCorrupt, path, ": ", file.bytes().size(), " bytes, at most ",
                 max_bytes, " are expected");
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

Status write_text(FileSystem& fs, const std::string& path, std::string_view text) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.create(path));
  DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, std::as_bytes(std::span(text.data(), text.size()))));
  return file->sync();
}

Status replace_text(FileSystem& fs, const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp";
  if (exists(fs, temporary)) DRIFTLESS_RETURN_IF_ERROR(fs.remove_file(temporary));
  DRIFTLESS_RETURN_IF_ERROR(write_text(fs, temporary, text));
  DRIFTLESS_RETURN_IF_ERROR(fs.rename_file(temporary, path));
  const std::size_t slash = path.rfind('/');
  return fs.sync_directory(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

Status remove_tree(FileSystem& fs, const std::string& path) {
  const Result<FileInfo> info = fs.info(path);
  if (!info.ok()) return info.status().code() == StatusCode::kNotFound ? Status() : info.status();
  if (info->kind != FileKind::kDirectory) return fs.remove_file(path);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(path));
  for (const std::string& name : names) {
    DRIFTLESS_RETURN_IF_ERROR(remove_tree(fs, join_path(path, name)));
  }
  return fs.remove_directory(path);
}

Status check_inside(FileSystem& fs, const std::string& directory, const std::string& name) {
  const std::string path = join_path(directory, name);
  DRIFTLESS_ASSIGN_OR_RETURN(const FileInfo info, fs.info(path));
  if (info.kind != FileKind::kSymlink) return {};
  const std::string root = resolved(directory);
  const std::string target = resolved(path);
  if (target.empty()) {
    return error(StatusCode::kNotFound, path, ": a symbolic link to nothing");
  }
  if (target.size() > root.size() && target.starts_with(root) && target[root.size()] == '/') {
    return {};
  }
  return error(StatusCode::kInvalidArgument, path, ": a symbolic link that leads out of ",
               directory, " to ", target,
               "; use a directory that holds the files themselves (cp -rL)");
}

}  // namespace driftless
