// SPDX-License-Identifier: Apache-2.0
// The private directory that both sides of the host_shm road share: the names in it, and how its
// files are created and opened. All files are opened relative to the directory, never through a
// symbolic link, and only if this user owns them and no other user has access.
#pragma once

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/road_kind.h"
#include "core/descriptor.h"

namespace driftless::host_shm {

// Implements RoadOpener::examine.
[[nodiscard]] std::vector<Finding> examine(const RoadOptions& options, std::uint64_t space_bytes,
                                           const Deadline& deadline);

inline constexpr const char* kLockName = "lock";
inline constexpr const char* kRunName = "run";
inline constexpr const char* kEndName = "end";
inline constexpr const char* kReceiversName = "receivers";
inline constexpr std::uint64_t kMaxRunInfoBytes = std::uint64_t{256} << 20;
inline constexpr std::uint64_t kMaxEndBytes = std::uint64_t{64} << 10;

// "s000007", "a000007", and back.
[[nodiscard]] std::string record_name(const PublicationId& id);
[[nodiscard]] std::optional<PublicationId> parse_record_name(std::string_view name);
// "s000007.<token>.3"
[[nodiscard]] std::string segment_name(const PublicationId& id, std::string_view token,
                                       std::uint64_t index);

// An open directory. Names that its calls take must be plain.
class Directory {
 public:
  // Opens the road's directory; creates it if `make`, otherwise kNotFound if it is missing.
  // kCorrupt, naming the owner, if it is not private.
  [[nodiscard]] static Result<Directory> open(const HostShmOptions& options, bool make);
  // Opens a directory below it, and creates it if it is missing.
  [[nodiscard]] Result<Directory> below(const char* name) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  // Creates a private file; kAlreadyExists if the name is taken.
  [[nodiscard]] Result<Descriptor> create(const std::string& name) const;
  // Opens an existing file; kNotFound. kCorrupt if it is not a plain, private file of this user.
  [[nodiscard]] Result<Descriptor> open_file(const std::string& name, bool write) const;
  // Opens a file to read and write it, and creates it if it is missing.
  [[nodiscard]] Result<Descriptor> open_or_create(const std::string& name) const;
  // The content of a small file. kNotFound; kCorrupt if it is longer than `max_bytes`.
  [[nodiscard]] Result<std::string> read(const std::string& name, std::uint64_t max_bytes) const;
  // Replaces a file atomically: readers see the old content or the new one.
  [[nodiscard]] Status replace(const std::string& name, std::string_view content) const;
  // Writes a new file under the name `temporary`; put_new() gives it its final name. put_new()
  // returns kAlreadyExists if that is taken, kNotFound if another process has removed the temporary
  // file.
  [[nodiscard]] Status write_new(const std::string& temporary, std::string_view content) const;
  [[nodiscard]] Status put_new(const std::string& temporary, const std::string& name) const;
  // Ok if the file does not exist.
  [[nodiscard]] Status remove(const std::string& name) const;
  [[nodiscard]] Result<std::vector<std::string>> list() const;
  // Whether `name` still refers to the open file.
  [[nodiscard]] bool is(const std::string& name, const Descriptor& file) const;

 private:
  Directory(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  [[nodiscard]] static Result<Directory> adopt(std::string path, int parent, const char* name,
                                               bool make);
  [[nodiscard]] Result<Descriptor> checked(int fd, const std::string& name) const;

  std::string path_;
  Descriptor fd_;
};

// The lock of the directory's sender. Thread-safe.
class SenderLock {
 public:
  // kBusy, naming the process, if another sender holds it.
  [[nodiscard]] static Result<SenderLock> take(const Directory& directory);
  // Ok while this process holds the lock. kWrongRun, naming the current sender, once the lock file
  // was removed or replaced: another sender may own the directory and its files now.
  [[nodiscard]] Status check(const Directory& directory) const;

 private:
  explicit SenderLock(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

// Writes bytes into an open file. kNoSpace, naming the settings to lower, if memory is full.
[[nodiscard]] Status write_all(const Descriptor& file, std::uint64_t offset,
                               std::span<const std::byte> bytes, std::string_view what);
// Reads the current content; kCorrupt if it is longer than `max_bytes`.
[[nodiscard]] Result<std::string> read_whole(const Descriptor& file, std::uint64_t max_bytes,
                                             std::string_view what);
// Takes the exclusive lock of a file without waiting; false if a living process holds it.
[[nodiscard]] Result<bool> lock_file(const Descriptor& file, std::string_view what);

}  // namespace driftless::host_shm
