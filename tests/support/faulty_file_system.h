// SPDX-License-Identifier: Apache-2.0
// A file system that fails on demand, and that can lose whatever was not synced.
//
// It works on real files. Every call that changes something, or opens a file to do so, is numbered
// from 0; the planned one fails. A disk that is "full" also refuses all later calls, except
// removals. After a "crash" every later call fails, as for a process that is gone. lose_unsynced()
// then simulates a power cut. It takes back writes since a file's last sync (all of them, or a
// random part), and names that were made, changed or removed since their directory's last sync (the
// newest ones, or all).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"

namespace driftless::testing {

// kShortWrite and kFull write the first half and report that there is no space.
enum class Fault { kNone, kEio, kEnospc, kShortWrite, kFull, kCrashBefore, kCrashAfter };

// The calls, whether they failed or not.
struct WriteLog {
  std::vector<std::uint64_t> write_bytes;  // of each pwrite()
  int syncs = 0;                           // of files
};

class FaultyFileSystem final : public FileSystem {
 public:
  // `stash` is a directory for files that were removed but whose removal is not synced yet.
  FaultyFileSystem(Fault fault, std::uint64_t at_call, std::string stash)
      : fault_(fault), at_call_(at_call), stash_(std::move(stash)) {}

  // Replaces the plan, and ends a full disk, but not a crash. No call may be under way.
  void plan(Fault fault, std::uint64_t at_call);

  [[nodiscard]] const WriteLog& log() const { return log_; }
  [[nodiscard]] std::uint64_t calls() const { return calls_; }
  [[nodiscard]] bool crashed() const { return crashed_; }
  // Simulates the power cut. With `keep` = 0, everything not synced is lost; otherwise each write
  // is kept with this probability, and so is a random part of the names.
  void lose_unsynced(double keep, std::uint64_t seed);

  Result<std::unique_ptr<File>> create(const std::string& path) override;
  Result<std::unique_ptr<File>> open(const std::string& path) override;
  Result<std::unique_ptr<File>> open_to_read(const std::string& path) override {
    return real_.open_to_read(path);
  }
  Result<FileInfo> info(const std::string& path) override { return real_.info(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return real_.list(path);
  }
  Status make_directory(const std::string& path) override;
  Status rename_file(const std::string& from, const std::string& to) override;
  Status rename_new(const std::string& from, const std::string& to) override;
  Status remove_file(const std::string& path) override;
  Status remove_directory(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Result<MappedFile> map(const std::string& path) override { return real_.map(path); }
  Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                         std::chrono::milliseconds wait) override {
    return real_.lock(path, wait);
  }

 private:
  class FaultyFile;
  struct UnsyncedWrite {
    std::uint64_t offset = 0;
    std::vector<std::byte> old_bytes;
    std::uint64_t old_size = 0;
  };
  struct UnsyncedName {
    std::string directory;
    std::function<void()> undo;
    std::function<void()> forget;  // once synced
  };

  enum class Needs { kSpace, kNoSpace };

  // Counts a call, and returns the fault for it.
  Fault next_fault(Needs needs);
  // Runs a whole-or-nothing call under the plan.
  Status act(Needs needs, const std::string& what, const std::function<Status()>& call);
  std::string next_stash() { return stash_ + "/" + std::to_string(stashed_++); }
  // Where a path is now, after the renaming of a directory above it.
  [[nodiscard]] std::string now(const std::string& path) const;
  void note_name(const std::string& path, std::function<void()> undo, std::function<void()> forget);

  FileSystem& real_ = posix_file_system();
  Fault fault_;
  std::uint64_t at_call_;
  const std::string stash_;
  std::mutex mutex_;
  std::uint64_t calls_ = 0;
  std::atomic<std::uint64_t> stashed_ = 0;
  std::atomic<bool> crashed_ = false;
  bool full_ = false;
  WriteLog log_;
  std::map<std::string, std::vector<UnsyncedWrite>> writes_;
  std::map<std::string, std::string> moved_;  // directories renamed: from, to
  std::vector<UnsyncedName> names_;
};

}  // namespace driftless::testing
