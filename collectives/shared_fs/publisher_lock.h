// SPDX-License-Identifier: Apache-2.0
// PublisherLock: whose the directory is. The leader of a publisher holds the lock file; its content
// names a session, new for every leader, and the process:
//
//   0123456789abcdef0123456789abcdef process 4711 on trainer-0
//
// A lock file that was removed or replaced is lost for good: the session is fenced. Publisher ranks
// that do not lead follow the session of the directory that they first wrote into.
#pragma once

#include <memory>
#include <string>

#include "collectives/shared_fs/shared_fs_road.h"
#include "core/file_system.h"

namespace driftless::shared_fs {

class PublisherLock {
 public:
  // [leader] kBusy, naming the process, if another publisher holds the directory after `wait`.
  [[nodiscard]] static Result<PublisherLock> take(FileSystem& fs, const std::string& dir,
                                                  std::chrono::milliseconds wait);
  // [other ranks] Holds nothing.
  [[nodiscard]] static PublisherLock follow(FileSystem& fs, const std::string& dir);

  // Ok while the directory is this session's. kWrongRun, naming both processes: fenced. Any other
  // failure: nobody can say at the moment. On another rank, before keep(), ok: it looks which
  // session is there.
  [[nodiscard]] Status check();
  // [other ranks] The session that is there is the one to follow, for good.
  void keep() { kept_ = true; }
  // 32 digits; empty on a rank that has seen none.
  [[nodiscard]] const std::string& session() const { return session_; }

 private:
  PublisherLock(FileSystem& fs, std::string path) : fs_(&fs), path_(std::move(path)) {}
  [[nodiscard]] Result<std::string> read() const;
  [[nodiscard]] Status fenced(const std::string& now) const;

  FileSystem* fs_;
  std::string path_;
  std::string session_;
  std::string owner_;  // of the session: "process 4711 on trainer-0"
  bool kept_ = false;
  std::unique_ptr<FileLock> lock_;  // null: not the leader
};

}  // namespace driftless::shared_fs
