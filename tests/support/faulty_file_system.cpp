// SPDX-License-Identifier: Apache-2.0
#include "support/faulty_file_system.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

namespace driftless::testing {
namespace {

namespace stdfs = std::filesystem;

std::string directory_of(const std::string& path) {
  return stdfs::path(path).lexically_normal().parent_path().string();
}

Status dead() { return error(StatusCode::kIo, "the process is dead"); }

void take_back(const std::string& path, std::uint64_t offset,
               const std::vector<std::byte>& old_bytes, std::uint64_t old_size) {
  std::error_code ignored;
  if (!stdfs::exists(path, ignored)) return;
  if (stdfs::file_size(path, ignored) > old_size) stdfs::resize_file(path, old_size, ignored);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(reinterpret_cast<const char*>(old_bytes.data()),
             static_cast<std::streamsize>(old_bytes.size()));
}

}  // namespace

class FaultyFileSystem::FaultyFile final : public File {
 public:
  FaultyFile(FaultyFileSystem& owner, std::unique_ptr<File> real)
      : owner_(owner), real_(std::move(real)) {}

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    {
      const std::scoped_lock lock(owner_.mutex_);
      owner_.log_.write_bytes.push_back(bytes.size());
    }
    const Fault fault = owner_.next_fault(Needs::kSpace);
    const std::string what = "writing " + path();
    if (fault == Fault::kCrashBefore) return dead();
    if (fault == Fault::kEio) return errno_status(EIO, what);
    if (fault == Fault::kEnospc) return errno_status(ENOSPC, what);
    const bool cut = fault == Fault::kShortWrite || fault == Fault::kFull;
    if (cut) bytes = bytes.subspan(0, bytes.size() / 2);
    remember(offset, bytes.size());
    Status written = real_->pwrite(offset, bytes);
    if (cut) return errno_status(ENOSPC, what);
    return fault == Fault::kCrashAfter ? dead() : written;
  }

  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return owner_.crashed_ ? dead() : real_->pread(offset, bytes);
  }

  Status sync() override {
    {
      const std::scoped_lock lock(owner_.mutex_);
      ++owner_.log_.syncs;
    }
    return owner_.act(Needs::kSpace, "syncing " + path(), [this] {
      Status status = real_->sync();
      const std::scoped_lock lock(owner_.mutex_);
      owner_.writes_.erase(path());
      return status;
    });
  }

  const std::string& path() const override { return real_->path(); }

 private:
  void remember(std::uint64_t offset, std::uint64_t size) {
    const std::scoped_lock lock(owner_.mutex_);
    UnsyncedWrite write;
    write.offset = offset;
    write.old_size = stdfs::file_size(path());
    if (offset < write.old_size) {
      write.old_bytes.resize(std::min(size, write.old_size - offset));
      std::ifstream file(path(), std::ios::binary);
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(reinterpret_cast<char*>(write.old_bytes.data()),
                static_cast<std::streamsize>(write.old_bytes.size()));
    }
    owner_.writes_[path()].push_back(std::move(write));
  }

  FaultyFileSystem& owner_;
  std::unique_ptr<File> real_;
};

void FaultyFileSystem::plan(Fault fault, std::uint64_t at_call) {
  fault_ = fault;
  at_call_ = at_call;
  full_ = false;
}

Fault FaultyFileSystem::next_fault(Needs needs) {
  const std::scoped_lock lock(mutex_);
  if (crashed_) return Fault::kCrashBefore;
  const bool now = calls_++ == at_call_;
  full_ = full_ || (now && fault_ == Fault::kFull);
  if (full_) return needs == Needs::kSpace ? Fault::kFull : Fault::kNone;
  if (!now) return Fault::kNone;
  crashed_ = fault_ == Fault::kCrashBefore || fault_ == Fault::kCrashAfter;
  return fault_;
}

Status FaultyFileSystem::act(Needs needs, const std::string& what,
                             const std::function<Status()>& call) {
  switch (next_fault(needs)) {
    case Fault::kCrashBefore: return dead();
    case Fault::kEio: return errno_status(EIO, what);
    case Fault::kEnospc:
    case Fault::kFull:
    case Fault::kShortWrite: return errno_status(ENOSPC, what);
    case Fault::kCrashAfter: {
      const Status ignored = call();
      return dead();
    }
    case Fault::kNone: break;
  }
  return call();
}

std::string FaultyFileSystem::now(const std::string& path) const {
  for (const auto& [from, to] : moved_) {
    if (path == from || path.starts_with(from + "/")) return to + path.substr(from.size());
  }
  return path;
}

void FaultyFileSystem::note_name(const std::string& path, std::function<void()> undo,
                                 std::function<void()> forget) {
  const std::scoped_lock lock(mutex_);
  names_.push_back({directory_of(path), std::move(undo), std::move(forget)});
}

Result<std::unique_ptr<File>> FaultyFileSystem::create(const std::string& path) {
  std::unique_ptr<File> file;
  DRIFTLESS_RETURN_IF_ERROR(act(Needs::kSpace, "creating " + path, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> real, real_.create(path));
    file = std::make_unique<FaultyFile>(*this, std::move(real));
    note_name(path, [this, path] { stdfs::remove(now(path)); }, [] {});
    return {};
  }));
  return file;
}

Result<std::unique_ptr<File>> FaultyFileSystem::open(const std::string& path) {
  std::unique_ptr<File> file;
  DRIFTLESS_RETURN_IF_ERROR(act(Needs::kSpace, "opening " + path, [&]() -> Status {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<File> real, real_.open(path));
    file = std::make_unique<FaultyFile>(*this, std::move(real));
    return {};
  }));
  return file;
}

Status FaultyFileSystem::make_directory(const std::string& path) {
  if (exists(real_, path)) return errno_status(EEXIST, path);
  return act(Needs::kSpace, "creating " + path, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(real_.make_directory(path));
    note_name(path, [path] { stdfs::remove_all(path); }, [] {});
    return {};
  });
}

Status FaultyFileSystem::rename_file(const std::string& from, const std::string& to) {
  return act(Needs::kSpace, "renaming " + from, [&]() -> Status {
    std::string saved;
    // The file that is replaced must come back if the renaming is lost.
    if (exists(real_, to)) {
      saved = next_stash();
      stdfs::copy_file(to, saved);
    }
    DRIFTLESS_RETURN_IF_ERROR(real_.rename_file(from, to));
    {
      const std::scoped_lock lock(mutex_);
      if (auto node = writes_.extract(from); !node.empty()) {
        node.key() = to;
        writes_.insert(std::move(node));
      }
    }
    note_name(
        to,
        [from, to, saved] {
          stdfs::rename(to, from);
          if (!saved.empty()) stdfs::rename(saved, to);
        },
        [] {});
    return {};
  });
}

Status FaultyFileSystem::rename_new(const std::string& from, const std::string& to) {
  return act(Needs::kSpace, "renaming " + from, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(real_.rename_new(from, to));
    {
      // Writes below that were not synced move along, and can still be lost.
      const std::scoped_lock lock(mutex_);
      std::map<std::string, std::vector<UnsyncedWrite>> moved;
      for (auto& [path, writes] : writes_) {
        const bool below = path == from || path.starts_with(from + "/");
        moved[below ? to + path.substr(from.size()) : path] = std::move(writes);
      }
      writes_ = std::move(moved);
      moved_[from] = to;
    }
    note_name(
        to,
        [this, from, to] {
          stdfs::rename(to, from);
          moved_.erase(from);
        },
        [] {});
    return {};
  });
}

Status FaultyFileSystem::remove_file(const std::string& path) {
  return act(Needs::kNoSpace, "removing " + path, [&]() -> Status {
    const std::string saved = next_stash();
    DRIFTLESS_RETURN_IF_ERROR(real_.rename_file(path, saved));
    note_name(
        path, [path, saved] { stdfs::rename(saved, path); }, [saved] { stdfs::remove(saved); });
    return {};
  });
}

Status FaultyFileSystem::remove_directory(const std::string& path) {
  return act(Needs::kNoSpace, "removing " + path, [&]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(real_.remove_directory(path));
    note_name(path, [path] { stdfs::create_directory(path); }, [] {});
    return {};
  });
}

Status FaultyFileSystem::sync_directory(const std::string& path) {
  return act(Needs::kSpace, "syncing " + path, [&]() -> Status {
    const std::scoped_lock lock(mutex_);
    const std::string directory = directory_of(path + "/x");
    for (const UnsyncedName& name : names_) {
      if (now(name.directory) == directory) name.forget();
    }
    std::erase_if(names_,
                  [&](const UnsyncedName& name) { return now(name.directory) == directory; });
    return {};
  });
}

void FaultyFileSystem::lose_unsynced(double keep, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  const auto kept = [&] { return keep > 0 && uniform(random) < keep; };
  for (auto& [path, writes] : writes_) {
    for (auto write = writes.rbegin(); write != writes.rend(); ++write) {
      if (!kept()) take_back(path, write->offset, write->old_bytes, write->old_size);
    }
  }
  // The newest names are lost first: a file system journals names in order.
  const std::size_t stay = keep > 0 ? random() % (names_.size() + 1) : 0;
  while (names_.size() > stay) {
    names_.back().undo();
    names_.pop_back();
  }
}

}  // namespace driftless::testing
