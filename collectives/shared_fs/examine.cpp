// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "collectives/shared_fs/medium.h"
#include "core/counted.h"
#include "core/disk_space.h"

namespace driftless {
namespace shared_fs {
namespace {

using std::chrono::nanoseconds;
using enum FindingState;

constexpr std::uint64_t kLittleSpace = std::uint64_t{1} << 30;
constexpr int kSyncs = 3;
constexpr double kSlowSyncMs = 200;
constexpr double kSkewSeconds = 2;
constexpr std::string_view kOtherDirectory =
    "mount the file system, correct the owner, or set another road.shared_fs.dir";

std::string fixed_text(double value) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

std::int64_t wall_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// One examination of a directory: its findings so far, and its own hidden directory for the tests.
class Examination {
 public:
  Examination(FileSystem& fs, const SharedFsOptions& options, std::uint64_t space_bytes,
              const Deadline& deadline)
      : fs_(fs), options_(options), space_bytes_(space_bytes), deadline_(deadline) {}

  std::vector<Finding> run() {
    if (!find_directory()) return std::move(findings_);
    examine_space();
    if (!options_.foreign_base.empty()) return std::move(findings_);
    scratch_dir_ = join_path(place_, concat(".doctor.", to_hex(random_hash128()), ".tmp"));
    if (const Status made = fs_.make_directory(scratch_dir_); !made.ok()) {
      findings_.push_back(failed("write", made, kOtherDirectory));
      return std::move(findings_);
    }
    if (write_and_sync() && in_time()) {
      exclusive();
      rename();
      if (in_time()) lock();
    }
    if (const Status removed = remove_tree(fs_, scratch_dir_); !removed.ok()) {
      findings_.push_back(failed("remove", removed, concat("remove ", scratch_dir_)));
    }
    return std::move(findings_);
  }

 private:
  void add(std::string_view check, FindingState state, std::string finding,
           std::string_view next = {}) {
    findings_.push_back({std::string(check), state, std::move(finding), std::string(next)});
  }

  // Whether there is still time for another test. If not, adds a finding.
  bool in_time() {
    if (!deadline_.expired()) return true;
    add("deadline", kFail, "the file system is slow: not everything was tried",
        "use a faster file system, or find what keeps it busy");
    return false;
  }

  // Finds the directory, or its parent if a trainer will create it.
  bool find_directory() {
    const std::string& dir = options_.dir;
    place_ = dir;
    Result<std::vector<std::string>> names = fs_.list(dir);
    if (names.ok()) {
      std::size_t versions = 0;
      for (const std::string& name : *names) {
        const auto id = parse_publication_name(name);
        versions += id && is_version(*id) ? 1 : 0;
      }
      add("directory", kOk, concat(dir, ": ", counted(versions, "version")));
      return true;
    }
    if (names.status().code() != StatusCode::kNotFound || !options_.foreign_base.empty()) {
      findings_.push_back(failed("directory", names.status(), kOtherDirectory));
      return false;
    }
    std::string path = dir;
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    const std::size_t slash = path.rfind('/');
    place_ = slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
    if (!exists(fs_, place_)) {
      add("directory", kFail, concat(dir, ": ", place_, " is not there either"), kOtherDirectory);
      return false;
    }
    add("directory", kOk, concat(dir, ": a trainer will make it in ", place_));
    return true;
  }

  void examine_space() {
    const Result<DiskSpace> space = disk_space(place_);
    if (!space.ok()) return findings_.push_back(failed("space", space.status(), kOtherDirectory));
    const std::string room =
        concat(about(space->free_bytes), " free of ", about(space->total_bytes));
    const std::string needs =
        space_bytes_ == 0 ? "" : concat(", about ", about(space_bytes_), " needed");
    const bool too_small = space->free_bytes < space_bytes_;
    const bool little = space->free_bytes < kLittleSpace;
    add("space", too_small ? kFail : (little ? kWarn : kOk), room + needs,
        too_small || little ? "delete files, lower keep_versions, or set another road.shared_fs.dir"
                            : "");
    examine_kind(space->kind);
  }

  void examine_kind(const std::string& kind) {
    if (kind == "nfs") {
      add("file system", kOk, "nfs: locks need v4, or v3 with locks",
          "mount it with soft,timeo=100, so that a call to a lost server ends");
    } else if (kind == "lustre") {
      add("file system", kOk, "lustre: locks need the mount option flock");
    } else if (kind == "tmpfs" || kind == "overlay") {
      add("file system", kWarn, concat(kind, ": only processes of this host see it"),
          "use a directory that all hosts mount, unless everything runs on this host");
    } else {
      add("file system", kOk, kind);
    }
  }

  // Tests that files like a publication's can be written and synced, and compares the server's
  // time.
  bool write_and_sync() {
    const std::string path = join_path(scratch_dir_, "file");
    Result<std::unique_ptr<File>> file = fs_.create(path);
    if (!file.ok()) return refuse("write", file.status());
    const std::vector<std::byte> block(std::size_t{64} << 10, std::byte{0x5A});
    double slowest_ms = 0;
    const std::int64_t before_ns = wall_ns();
    for (int i = 0; i < kSyncs && !deadline_.expired(); ++i) {
      const auto offset = static_cast<std::uint64_t>(i) * block.size();
      if (const Status done = (*file)->pwrite(offset, block); !done.ok()) {
        return refuse("write", done);
      }
      const auto begin = environment().now();
      if (const Status done = (*file)->sync(); !done.ok()) return refuse("fsync", done);
      const std::chrono::duration<double, std::milli> took = environment().now() - begin;
      slowest_ms = std::max(slowest_ms, took.count());
    }
    if (const Status done = fs_.sync_directory(scratch_dir_); !done.ok()) {
      return refuse("fsync", done);
    }
    const bool slow = slowest_ms > kSlowSyncMs;
    add("fsync", slow ? kWarn : kOk,
        concat("slowest of ", kSyncs, ": ", fixed_text(slowest_ms), " ms"),
        slow ? "each version waits for several of them: use a faster file system" : "");
    examine_clock(path, before_ns);
    return true;
  }

  void examine_clock(const std::string& path, std::int64_t before_ns) {
    const Result<FileInfo> info = fs_.info(path);
    if (!info.ok() || info->modified_ns == 0) return;
    const std::int64_t after_ns = wall_ns(), at = info->modified_ns;
    const std::int64_t skew =
        at < before_ns ? at - before_ns : std::max<std::int64_t>(at - after_ns, 0);
    const double seconds = static_cast<double>(skew) / 1e9;
    const bool apart = std::abs(seconds) > kSkewSeconds;
    add("clock", apart ? kWarn : kOk,
        concat("the file server's clock is ", fixed_text(seconds), " s from this host's"),
        apart ? "versions are correct, but times in records are not: run NTP" : "");
  }

  // True if the call was refused because the name exists. Otherwise adds a finding.
  bool taken(std::string_view check, const Status& status, std::string_view done_anyway) {
    if (status.code() == StatusCode::kAlreadyExists) return true;
    if (!status.ok()) return refuse(check, status);
    add(check, kFail, std::string(done_anyway),
        "use another file system: this is what keeps two publishers apart");
    return false;
  }

  // Tests two publishers that begin the same version: the second one must be refused.
  void exclusive() {
    const Status again = fs_.create(join_path(scratch_dir_, "file")).status();
    if (taken("exclusive create", again, "an existing file was created again")) {
      add("exclusive create", kOk, "honoured");
    }
  }

  void rename() {
    const std::string from = join_path(scratch_dir_, "from"), to = join_path(scratch_dir_, "to");
    Status done = fs_.make_directory(from);
    if (done.ok()) done = fs_.rename_new(from, to);
    if (done.ok()) done = fs_.sync_directory(scratch_dir_);
    if (done.ok()) done = fs_.make_directory(from);
    if (!done.ok()) {
      refuse("rename", done);
    } else if (taken("rename", fs_.rename_new(from, to), "a directory replaced another one")) {
      add("rename", kOk, "atomic; it replaces no directory");
    }
  }

  void lock() {
    const std::string path = join_path(scratch_dir_, "lock");
    const auto first = fs_.lock(path, std::chrono::milliseconds(0));
    if (!first.ok()) {
      findings_.push_back(failed("lock", first.status(),
                                 "mount it with locks: NFS v4, Lustre with the option flock"));
      return;
    }
    const bool twice = fs_.lock(path, std::chrono::milliseconds(0)).ok();
    add("lock", twice ? kFail : kOk, twice ? "two holders of one lock" : "honoured",
        twice ? "mount it with locks (not nolock or localflock), or run one publisher only" : "");
  }

  bool refuse(std::string_view check, const Status& status) {
    const bool full = status.code() == StatusCode::kNoSpace;
    findings_.push_back(failed(check, status, full ? "delete files there" : kOtherDirectory));
    return false;
  }

  FileSystem& fs_;
  const SharedFsOptions& options_;
  const std::uint64_t space_bytes_;
  const Deadline& deadline_;
  std::string place_, scratch_dir_;
  std::vector<Finding> findings_;
};

}  // namespace
}  // namespace shared_fs

std::vector<Finding> examine_shared_fs(FileSystem& fs, const SharedFsOptions& options,
                                       std::uint64_t space_bytes, const Deadline& deadline) {
  return shared_fs::Examination(fs, options, space_bytes, deadline).run();
}

}  // namespace driftless
