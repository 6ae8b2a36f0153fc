// SPDX-License-Identifier: Apache-2.0
// Reads the signs of life in the directory. Takes no lock: it reads the kernel's list of locks.
#include <signal.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>

#include "collectives/shared_fs/medium.h"
#include "collectives/shared_fs/opener.h"
#include "collectives/shared_fs/receiver_file.h"
#include "core/host_name.h"

namespace driftless::shared_fs {
namespace {

constexpr std::size_t kMostLocks = 100'000;

std::chrono::system_clock::time_point moment(std::int64_t ns) {
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(ns)));
}

// Whether a process of this host holds a lock on the file. A line of the list:
// "3: FLOCK  ADVISORY  WRITE 23139 00:1b:130765 0 EOF".
bool is_locked_here(std::uint64_t inode) {
  std::ifstream list("/proc/locks");
  const std::string file = concat(":", inode);
  std::string line;
  for (std::size_t lines = 0; lines < kMostLocks && std::getline(list, line); ++lines) {
    std::istringstream words(line);
    std::string number, kind, mode, access, process, place;
    words >> number >> kind >> mode >> access >> process >> place;
    if (mode == "ADVISORY" && access == "WRITE" && place.ends_with(file)) return true;
  }
  return false;
}

// Whether "process 4711 on trainer-0" is a process of this host that has ended.
bool has_ended_here(std::string_view publisher) {
  constexpr std::string_view kProcess = "process ";
  const std::size_t on = publisher.find(" on ");
  if (!publisher.starts_with(kProcess) || on == std::string_view::npos) return false;
  if (publisher.substr(on + 4) != host_name()) return false;
  pid_t process = 0;
  const char* const end = publisher.data() + on;
  const auto [at, code] = std::from_chars(publisher.data() + kProcess.size(), end, process);
  return code == std::errc() && at == end && process > 0 && ::kill(process, 0) != 0 &&
         errno == ESRCH;
}

}  // namespace

Result<RoadSigns> signs(const RoadOptions& given, const Deadline& deadline) {
  const std::string& dir = options_in<SharedFsOptions>(given).dir;
  DRIFTLESS_RETURN_IF_ERROR(deadline.check(concat("reading ", dir)));
  FileSystem& fs = posix_file_system();
  RoadSigns signs;
  const std::string lock = join_path(dir, kLockName);
  const Result<FileInfo> file = fs.info(lock);
  const Result<std::string> text = read_small(fs, lock, kMaxLockBytes);
  if (file.ok() && text.ok()) {
    signs.publisher = owner_in(*text);
    if (is_locked_here(file->identity.number)) {
      signs.alive = true;
    } else if (has_ended_here(signs.publisher)) {
      signs.alive = false;
    }
  }
  const std::string receivers = join_path(dir, kReceiversName);
  ReceiverWatch watch(fs, receivers, std::chrono::hours(1));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<ReceiverWatch::Receiver> found, watch.look());
  for (const ReceiverWatch::Receiver& each : found) {
    const Result<FileInfo> info = fs.info(join_path(receivers, receiver_file_name(each.report.id)));
    signs.receivers.push_back({each.report, each.readable, {}});
    if (info.ok() && info->modified_ns > 0) {
      signs.receivers.back().seen = moment(info->modified_ns);
    }
  }
  return signs;
}

}  // namespace driftless::shared_fs
