// SPDX-License-Identifier: Apache-2.0
// The seam to the file system. Everything that Driftless writes goes through a FileSystem, so that
// tests can make any call fail, cut a write short, or lose what was not synced.
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
  // Writes all of `bytes` at `offset`, whatever the number of system calls it takes.
  [[nodiscard]] virtual Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  // Fills all of `bytes`; kCorrupt if the file ends before.
  [[nodiscard]] virtual Status pread(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  // Returns once the file's content is on stable storage.
  [[nodiscard]] virtual Status sync() = 0;
  [[nodiscard]] virtual const std::string& path() const = 0;
};

// Which file it is, whatever its name: two names with the same identity are one file. All zero: not
// known. Meaningful while the file is open or mapped; the number of one that is gone may be used
// again.
struct FileIdentity {
  std::uint64_t device = 0;
  std::uint64_t number = 0;  // of the inode

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// A file's content, mapped or held: a read-only mapping, or bytes in memory that an owner keeps.
// Somebody who truncates a file while it is mapped ends the process (SIGBUS): the files of a
// version are immutable, and a checkpoint is locked while patched.
class MappedFile {
 public:
  MappedFile() = default;
  // Takes over a mapping of the whole file, and unmaps it.
  MappedFile(std::string path, const std::byte* data, std::uint64_t size,
             const FileIdentity& identity = {});
  // Content that `owner` keeps valid and unchanged for as long as it lives. The path only names it.
  MappedFile(std::string path, std::shared_ptr<const void> owner, std::span<const std::byte> bytes,
             MemoryKind kind = MemoryKind::kHost);

  // Empty once moved from.
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {data_.get(), data_ == nullptr ? 0 : size_};
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  // Whether bytes() are a mapping, which whoever writes into the file changes, at any time.
  [[nodiscard]] bool mapped() const { return mapped_; }
  // Of the mapped file; the path may name another one by now.
  [[nodiscard]] const FileIdentity& identity() const { return identity_; }
  // Where bytes() are; kDevice only from roads that were asked for it.
  [[nodiscard]] MemoryKind memory_kind() const { return kind_; }
  // The bytes from `offset` on, which lie within it; they keep the whole valid.
  [[nodiscard]] MappedFile slice(std::uint64_t offset, std::uint64_t size) const;
  // Tells the kernel that these bytes will not be needed soon, so that a sweep over a checkpoint
  // larger than memory does not push everything else out. Nothing if the content is held. Not of
  // a slice.
  void forget(std::uint64_t offset, std::uint64_t size) const;

 private:
  std::string path_;
  std::shared_ptr<const std::byte> data_;  // shares the mapping, or the owner
  std::uint64_t size_ = 0;
  bool mapped_ = false;
  MemoryKind kind_ = MemoryKind::kHost;
  FileIdentity identity_;
};

// Held until destroyed; released by the kernel when the process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
  // False once the lock's path names another file, or none: somebody removed it, and another
  // process may hold a lock by the same name. A process that was stopped for a while asks before it
  // goes on. Any failure: nobody can say.
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
  // The same, to be read only: also if the file is not ours to write.
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
// A plain name: not empty, not "." or "..", without '/' or control characters. kCorrupt otherwise.
[[nodiscard]] Status check_file_name(std::string_view name);
// True where something is at `path`.
[[nodiscard]] bool exists(FileSystem& fs, const std::string& path);
// A directory and its parents, as `mkdir -p` makes them. Ok if it is there.
[[nodiscard]] Status make_directories(FileSystem& fs, const std::string& path);
// The whole of a small file; kCorrupt if it is longer than `max_bytes`.
[[nodiscard]] Result<std::string> read_text(FileSystem& fs, const std::string& path,
                                            std::uint64_t max_bytes);
// A new file with this content, synced.
[[nodiscard]] Status write_text(FileSystem& fs, const std::string& path, std::string_view text);
// The same in place of an existing file: at every moment either the old content or the new one.
[[nodiscard]] Status replace_text(FileSystem& fs, const std::string& path, std::string_view text);
// A directory and all in it; symbolic links are removed, not followed. Ok if nothing is there.
[[nodiscard]] Status remove_tree(FileSystem& fs, const std::string& path);
// Fails if a file or directory is a symbolic link that leads out of `directory`.
[[nodiscard]] Status check_inside(FileSystem& fs, const std::string& directory,
                                  const std::string& name);

}  // namespace driftless
