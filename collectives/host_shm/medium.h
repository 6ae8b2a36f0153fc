// SPDX-License-Identifier: Apache-2.0
// The private directory that both sides of the host_shm road share: its names, and how files in it
// are made and opened. Everything is opened relative to the directory, never through a symbolic
// link, and only if it is ours and closed to others.
#pragma once

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/road_kind.h"
#include "core/descriptor.h"

namespace driftless::host_shm {

// RoadOpener::examine.
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

// An open directory. Names given to its calls are plain.
class Directory {
 public:
  // The road's own; if it is missing, it is made, or that is kNotFound. kCorrupt, saying whose it
  // is, if it is not private.
  [[nodiscard]] static Result<Directory> open(const HostShmOptions& options, bool make);
  // One below it, made if it is missing.
  [[nodiscard]] Result<Directory> below(const char* name) const;

  [[nodiscard]] const std::string& path() const { return path_; }
  // A new file of ours; kAlreadyExists.
  [[nodiscard]] Result<Descriptor> create(const std::string& name) const;
  // An existing one; kNotFound. kCorrupt if it is not a plain file, ours, and closed to others.
  [[nodiscard]] Result<Descriptor> open_file(const std::string& name, bool write) const;
  // An existing one to be read and written, or a new one.
  [[nodiscard]] Result<Descriptor> open_or_create(const std::string& name) const;
  // A small file's content. kNotFound; kCorrupt if it is longer.
  [[nodiscard]] Result<std::string> read(const std::string& name, std::uint64_t max_bytes) const;
  // At every moment the old content or the new one.
  [[nodiscard]] Status replace(const std::string& name, std::string_view content) const;
  // A new file with this content under `temporary`; put_new() gives it its name. kAlreadyExists if
  // that is taken, kNotFound if somebody has removed the temporary file.
  [[nodiscard]] Status write_new(const std::string& temporary, std::string_view content) const;
  [[nodiscard]] Status put_new(const std::string& temporary, const std::string& name) const;
  // Ok if it is not there.
  [[nodiscard]] Status remove(const std::string& name) const;
  [[nodiscard]] Result<std::vector<std::string>> list() const;
  // Whether `name` is still the file that is open.
  [[nodiscard]] bool is(const std::string& name, const Descriptor& file) const;

 private:
  Directory(std::string path, Descriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  [[nodiscard]] static Result<Directory> adopt(std::string path, int parent, const char* name,
                                               bool make);
  [[nodiscard]] Result<Descriptor> checked(int fd, const std::string& name) const;

  std::string path_;
  Descriptor fd_;
};

// The lock of the directory's sender. Any thread.
class SenderLock {
 public:
  // kBusy, naming the process, if another sender lives.
  [[nodiscard]] static Result<SenderLock> take(const Directory& directory);
  // Ok while the lock is ours. kWrongRun, naming who sends now, once its file was removed or
  // replaced: another sender may have taken the directory over, and what is in it is not ours.
  [[nodiscard]] Status check(const Directory& directory) const;

 private:
  explicit SenderLock(Descriptor file) : file_(std::move(file)) {}
  Descriptor file_;
};

// Bytes of an open file. kNoSpace, saying what to raise, where memory is full.
[[nodiscard]] Status write_all(const Descriptor& file, std::uint64_t offset,
                               std::span<const std::byte> bytes, std::string_view what);
// All that is in it now; kCorrupt if that is longer.
[[nodiscard]] Result<std::string> read_whole(const Descriptor& file, std::uint64_t max_bytes,
                                             std::string_view what);
// The exclusive lock of a file, without waiting; false where somebody lives who holds it.
[[nodiscard]] Result<bool> lock_file(const Descriptor& file, std::string_view what);

}  // namespace driftless::host_shm
