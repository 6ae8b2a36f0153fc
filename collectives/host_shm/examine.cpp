// SPDX-License-Identifier: Apache-2.0
#include <sys/file.h>
#include <sys/stat.h>

#include "collectives/host_shm/medium.h"
#include "core/disk_space.h"

namespace driftless {
namespace host_shm {
namespace {

using enum FindingState;

Finding examine_space(const HostShmOptions& options) {
  const Result<DiskSpace> space = disk_space(options.dir);
  if (!space.ok()) return failed("memory", space.status(), "set road.host_shm.dir");
  const std::string room =
      concat(options.dir, ": ", about(space->free_bytes), " free of ", about(space->total_bytes),
             ", road.host_shm.size is ", about(options.size_bytes));
  constexpr const char* kNext =
      "enlarge that file system (a container's --shm-size), or lower road.host_shm.size";
  if (space->total_bytes < options.size_bytes) return {"memory", kFail, room, kNext};
  if (space->free_bytes < options.size_bytes) return {"memory", kWarn, room, kNext};
  if (space->kind == "tmpfs") return {"memory", kOk, room};
  return {"memory", kWarn, concat(room, "; it is ", space->kind, ", not memory"),
          "set road.host_shm.dir to a file system in memory"};
}

std::uint64_t bytes_in(const Directory& directory) {
  std::uint64_t bytes = 0;
  const Result<std::vector<std::string>> names = directory.list();
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    struct stat found{};
    const std::string path = join_path(directory.path(), name);
    if (::lstat(path.c_str(), &found) == 0) bytes += static_cast<std::uint64_t>(found.st_size);
  }
  return bytes;
}

// Reports the segments of a live or dead sender.
Finding examine_segments(const HostShmOptions& options) {
  const Result<Directory> directory = Directory::open(options, false);
  const Finding none{"segments", kOk, "none of a dead process"};
  if (directory.status().code() == StatusCode::kNotFound) return none;
  if (!directory.ok()) return failed("segments", directory.status(), "remove that directory");
  const Result<Descriptor> lock = directory->open_file(kLockName, false);
  // Takes the lock for a microsecond. A sender that starts meanwhile is refused, and has to be
  // started again.
  const bool dead = lock.ok() && ::flock(lock->get(), LOCK_SH | LOCK_NB) == 0;
  if (lock.ok() && !dead) {
    const Result<std::string> holder = directory->read(kLockName, kMaxEndBytes);
    return {"segments", kOk,
            concat(directory->path(), ": process ", holder.ok() ? *holder : "?", " sends here")};
  }
  const std::uint64_t bytes = bytes_in(*directory);
  if (bytes <= kMaxEndBytes) return none;
  return {"segments", kWarn,
          concat(directory->path(), ": ", about(bytes), " that a dead process left"),
          concat("start the agent again, which removes them, or remove ", directory->path())};
}

}  // namespace

std::vector<Finding> examine(const RoadOptions& given, std::uint64_t, const Deadline&) {
  const auto& options = options_in<HostShmOptions>(given);
  return {examine_space(options), examine_segments(options)};
}

}  // namespace host_shm
}  // namespace driftless
