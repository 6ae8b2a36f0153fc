// SPDX-License-Identifier: Apache-2.0
// A disk in memory, and the file systems through which simulated processes use it.
//
// The disk keeps files by identity, as inodes: a file that is replaced or removed stays for every
// process that has it open, mapped or locked; a mapping shows later writes to the file. The disk
// remembers which process wrote what since the last sync. If a host loses power, unsynced writes
// and names of its process are lost, all or some.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "sim/sim_bytes.h"
#include "sim/simulation.h"

namespace driftless::testing {

class SimDisk {
 public:
  SimDisk();

  // The test sets it, for all processes.
  bool full = false;
  double error_rate = 0;      // of calls that change something
  std::uint64_t changes = 0;  // counts writes and names

  // The actions of operators and other programs, which are no process. They never fail, missing
  // directories are made, and a power cut loses none of it.
  void write(const std::string& path, std::span<const std::byte> bytes);     // a new inode
  [[nodiscard]] std::vector<std::byte> read(const std::string& path) const;  // empty: not there
  [[nodiscard]] std::vector<std::string> list(const std::string& path) const;
  [[nodiscard]] bool has(const std::string& path) const;
  void remove(const std::string& path);  // a file, or a directory with all in it
  // Changes the bits of one byte in place. False: there is no such file, or it is empty.
  bool damage(const std::string& path, Random& random);

  // The host of `process` loses power: what it did not sync is lost, each write and a stretch of
  // the newest names with probability `1 - keep`.
  void lose_unsynced(const Process& process, double keep, Random& random);

 private:
  friend class SimFileSystem;
  friend class SimFile;
  friend class SimLock;
  struct Node {
    bool directory = false;
    std::map<std::string, std::shared_ptr<Node>> entries;
    SimBytes bytes;
    std::uint64_t number = 0;  // the inode's
    std::weak_ptr<void> lock;
  };
  struct UnsyncedWrite {
    const Process* by = nullptr;
    std::shared_ptr<Node> node;
    std::uint64_t offset = 0, old_size = 0;
    std::vector<std::byte> old_bytes;
  };
  struct UnsyncedName {
    const Process* by = nullptr;
    std::shared_ptr<Node> directory;
    std::function<void()> undo;
  };

  [[nodiscard]] std::shared_ptr<Node> find(const std::string& path) const;
  // The directory above, and the last name. Null: not there.
  [[nodiscard]] std::pair<std::shared_ptr<Node>, std::string> parent(const std::string& path) const;
  std::shared_ptr<Node> new_node(bool directory);

  std::uint64_t nodes_ = 0;
  std::shared_ptr<Node> root_;
  std::vector<UnsyncedWrite> writes_;
  std::vector<UnsyncedName> names_;
};

// The view of one process. Every call is a step of the simulation.
class SimFileSystem final : public FileSystem {
 public:
  // All outlive it.
  SimFileSystem(Simulation& simulation, SimDisk& disk, Process& process)
      : simulation_(&simulation), disk_(&disk), process_(&process) {}
  // A view without a process, to make and read files. No call is a step or fails, and nothing is
  // ever lost.
  explicit SimFileSystem(SimDisk& disk) : disk_(&disk) {}

  Result<std::unique_ptr<File>> create(const std::string& path) override;
  Result<std::unique_ptr<File>> open(const std::string& path) override;
  Result<FileInfo> info(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Status make_directory(const std::string& path) override;
  Status rename_file(const std::string& from, const std::string& to) override;
  Status rename_new(const std::string& from, const std::string& to) override;
  Status remove_file(const std::string& path) override;
  Status remove_directory(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Result<MappedFile> map(const std::string& path) override;
  Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                         std::chrono::milliseconds wait) override;

 private:
  friend class SimFile;
  friend class SimLock;
  enum class Call { kRead, kWrite, kRemove };
  Status begin(Call call, const std::string& what);
  Status rename(const std::string& from, const std::string& to, bool replaces);
  Status remove(const std::string& path, bool directory);
  void note(std::shared_ptr<SimDisk::Node> directory, std::function<void()> undo);

  Simulation* simulation_ = nullptr;
  SimDisk* disk_;
  Process* process_ = nullptr;
};

}  // namespace driftless::testing
