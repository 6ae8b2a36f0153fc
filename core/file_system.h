// SPDX-License-Identifier: Apache-2.0
// The seam to the file system. Checkpoints, journals and versions in files (except HDF5) go through
// a FileSystem: tests can make any call fail, cut a write short, or lose what was not synced.
//
// Paths are absolute or relative to the working directory. All calls may be made from any thread;
// one File is used by one thread at a time, except pwrite() and pread(), which may overlap.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/memory_kind.h"
#include "core/status.h"

namespace driftless {

// An open file. Closed by the destructor, which never reports: call sync() first.
class File {
 public:
  virtual ~File() = default;
  // Writes all of `bytes` at `offset`, with as many system calls as that takes.
  [[nodiscard]] virtual Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Fills all of `bytes`; kCorrupt if the file ends before.
  [[nodiscard]] virtual Status pread(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  // Returns once the file's content is on stable storage.
  [[nodiscard]] virtual Status sync() = 0;
  [[nodiscard]] virtual const std::string& path() const = 0;
};

// Identifies a file independently of its name: two names with the same identity are one file. All
// zero: not known. Valid while the file is open or mapped; the system may give the number of a
// removed file to another one.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t number = 0;  // of the inode

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// The content of a file: a read-only mapping, or bytes in memory that an owner keeps. If another
// process truncates a mapped file, this process ends by SIGBUS. To prevent that, the files of a
// version are immutable, and a checkpoint is locked while it is patched.
class MappedFile {
 public:
  MappedFile() = default;
  // Takes over a mapping of the whole file, and unmaps it.
  MappedFile(std::string path, const std::byte* data, std::uint64_t size,
             const FileIdentity& identity = {});
  // Bytes that `owner` keeps valid and unchanged while it lives. `path` serves only as their name.
  MappedFile(std::string path, std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
             MemoryKind kind = MemoryKind::kHost);

  // Empty after a move.
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {data_.get(), data_ == nullptr ? 0 : size_};
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  // Whether bytes() are a mapping. A mapping changes whenever another process writes to the file.
  [[nodiscard]] bool mapped() const { return mapped_; }
  // The identity of the mapped file; its path may name another file by now.
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }
  // The memory that holds bytes(); kDevice only from roads that were asked for it.
  [[nodiscard]] MemoryKind memory_kind() const { return kind_; }
  // A slice that begins at `offset`, within the content. It keeps the whole content valid.
  [[nodiscard]] MappedFile slice(std::uint64_t offset, std::uint64_t size) const;
  // Advises the kernel that these bytes will not be needed soon, so that reading a checkpoint
  // larger than memory does not evict everything else. Does nothing if the content is held in
  // memory. Not for slices.
  void forget(std::uint64_t offset, std::uint64_t size) const;

 private:
  std::string path_;
  std::shared_ptr<const std::byte> data_;  // shares the mapping, or the owner
  std::uint64_t size_ = 0;
  bool mapped_ = false;
  MemoryKind kind_ = MemoryKind::kHost;
  FileIdentity identity_;
};

// A lock that is held until this object is destroyed; the kernel releases it when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // False once the path of the lock names another file or none: somebody removed it, and another
  // process may hold a lock by the same name. A process that was suspended calls this before it
  // continues. After a failure the state is unknown.
  [[nodiscard]] virtual Result<bool> held() = 0;
};

enum class FileKind : unsigned char { kFile, kDirectory, kSymlink, kOther };

struct FileInfo {
  FileKind kind = FileKind::kOther;  // of the path itself; a symbolic link is not followed
  std::uint64_t size_bytes = 0;
  std::uint64_t hard_links = 1;
  FileIdentity identity;
  std::int64_t modified_ns = 0;  // when its content was changed last; 0: not known

  friend bool operator==(const FileInfo&, const FileInfo&) = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // A new file; kAlreadyExists if one is there.
  [[nodiscard]] virtual Result<std::unique_ptr<File>> create(const std::string& path) = 0;
  // An existing regular file, to be read and written in place.
  [[nodiscard]] virtual Result<std::unique_ptr<File>> open(const std::string& path) = 0;
  // The same, read-only: works without permission to write.
  [[nodiscard]] virtual Result<std::unique_ptr<File>> open_to_read(const std::string& path) {
    return open(path);
  }
  // kNotFound if nothing is there.
  [[nodiscard]] virtual Result<FileInfo> info(const std::string& path) = 0;
  // Names in a directory, sorted, without "." and "..".
  [[nodiscard]] virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  [[nodiscard]] virtual Status make_directory(const std::string& path) = 0;
  // Atomically replaces a file `to`.
  [[nodiscard]] virtual Status rename_file(const std::string& from, const std::string& to) = 0;
  // A file or a directory; kAlreadyExists if anything is at `to`.
  [[nodiscard]] virtual Status rename_new(const std::string& from, const std::string& to) = 0;
  [[nodiscard]] virtual Status remove_file(const std::string& path) = 0;
  [[nodiscard]] virtual Status remove_directory(const std::string& path) = 0;
  // Makes the names in a directory durable.
  [[nodiscard]] virtual Status sync_directory(const std::string& path) = 0;
  // A regular file; an empty one maps to no bytes.
  [[nodiscard]] virtual Result<MappedFile> map(const std::string& path) = 0;
  // An exclusive lock on the file `path` (made if missing); kBusy once `wait` has passed.
  [[nodiscard]] virtual Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                               std::chrono::milliseconds wait) = 0;
};

// The operating system's. One object, without state.
[[nodiscard]] FileSystem& posix_file_system();

[[nodiscard]] std::string join_path(std::string_view directory, std::string_view name);
// kCorrupt unless `name` is plain: 1 to NAME_MAX bytes, none '/' or below 0x20; not "." or "..".
[[nodiscard]] Status check_file_name(std::string_view name);
// True if anything exists at `path`.
[[nodiscard]] bool exists(FileSystem& fs, const std::string& path);
// Makes a directory and its parents, as `mkdir -p` does. Ok if it exists.
[[nodiscard]] Status make_directories(FileSystem& fs, const std::string& path);
// Reads a small file whole; kCorrupt if it is longer than `max_bytes`.
[[nodiscard]] Result<std::string> read_text(FileSystem& fs, const std::string& path,
                                            std::uint64_t max_bytes);
// Writes a new file with this content, and syncs it.
[[nodiscard]] Status write_text(FileSystem& fs, const std::string& path, std::string_view text);
// Replaces a file: a reader sees the old content or the new one, never a mixture.
[[nodiscard]] Status replace_text(FileSystem& fs, const std::string& path, std::string_view text);
// Removes a directory and its content; symbolic links are removed, not followed. Ok if it is
// missing.
[[nodiscard]] Status remove_tree(FileSystem& fs, const std::string& path);
// Fails if a file or directory is a symbolic link that leads out of `directory`.
[[nodiscard]] Status check_inside(FileSystem& fs, const std::string& directory,
                                  const std::string& name);

}  // namespace driftless
