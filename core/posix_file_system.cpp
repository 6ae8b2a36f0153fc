// SPDX-License-Identifier: Apache-2.0
// posix_file_system(): FileSystem over system calls.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <type_traits>

#include "core/descriptor.h"
#include "core/file_system.h"

namespace driftless {
namespace {

// The most that one call is given. Linux would move 2 GiB - 4 KiB at most.
constexpr std::uint64_t kMaxTransferBytes = std::uint64_t{1} << 30;

// The status of a system call that returns 0 on success.
template <typename... What>
Status status_of(int result, const What&... what) {
  return result == 0 ? Status() : errno_status(errno, concat(what...));
}

template <typename Call, typename Byte>
Status transfer(const Call& call, std::string_view verb, const Descriptor& file,
                std::uint64_t offset, std::span<Byte> bytes, std::string_view what) {
  while (!bytes.empty()) {
    const std::size_t wanted = std::min<std::uint64_t>(bytes.size(), kMaxTransferBytes);
    const ssize_t moved = call(file.get(), bytes.data(), wanted, static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno_status(errno, concat(verb, what, " at ", offset));
    if (moved == 0 && std::is_const_v<Byte>) {
      return error(StatusCode::kIo, verb, what, " at ", offset, ": nothing was written");
    }
    if (moved == 0) {
      return error(StatusCode::kCorrupt, what, ": ends at byte ", offset, ", ", bytes.size(),
                   " more were expected");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
    offset += static_cast<std::uint64_t>(moved);
  }
  return {};
}

class PosixFile final : public File {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  Status pwrite(std::uint64_t offset, std::span<const std::byte> bytes) override {
    return write_at(fd_, offset, bytes, path_);
  }
  Status pread(std::uint64_t offset, std::span<std::byte> bytes) override {
    return read_at(fd_, offset, bytes, path_);
  }
  Status sync() override { return status_of(::fsync(fd_.get()), "syncing ", path_); }
  [[nodiscard]] const std::string& path() const override { return path_; }

 private:
  Descriptor fd_;
  std::string path_;
};

FileIdentity identity_of(const struct stat& status) {
  return {static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino)};
}

class PosixLock final : public FileLock {
 public:
  PosixLock(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  // Opens the path instead of stat(): network file systems revalidate their cache on open.
  Result<bool> held() override {
    const Descriptor now(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!now.valid() && (errno == ENOENT || errno == ENOTDIR)) return false;
    struct stat there{};
    struct stat mine{};
    if (!now.valid() || ::fstat(now.get(), &there) != 0 || ::fstat(fd_.get(), &mine) != 0) {
      return errno_status(errno, concat("looking at the lock ", path_));
    }
    return identity_of(there) == identity_of(mine);
  }

 private:
  Descriptor fd_;  // closing it releases the lock
  std::string path_;
};

FileKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kFile;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  if (S_ISLNK(mode)) return FileKind::kSymlink;
  return FileKind::kOther;
}

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> create(const std::string& path) override {
    return open_file(path, O_RDWR | O_CREAT | O_EXCL, "creating ");
  }

  Result<std::unique_ptr<File>> open(const std::string& path) override {
    return open_file(path, O_RDWR, "opening ");
  }

  Result<std::unique_ptr<File>> open_to_read(const std::string& path) override {
    return open_file(path, O_RDONLY, "opening ");
  }

  Result<FileInfo> info(const std::string& path) override {
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0) return errno_status(errno, path);
    return FileInfo{kind_of(status.st_mode), static_cast<std::uint64_t>(status.st_size),
                    static_cast<std::uint64_t>(status.st_nlink), identity_of(status),
                    status.st_mtim.tv_sec * std::int64_t{1'000'000'000} + status.st_mtim.tv_nsec};
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    std::vector<std::string> names;
    std::error_code problem;
    std::filesystem::directory_iterator at(directory, problem), end;
    if (problem) return errno_status(problem.value(), directory);
    for (; !problem && at != end; at.increment(problem)) names.push_back(at->path().filename());
    if (problem) return errno_status(problem.value(), concat("listing ", directory));
    std::sort(names.begin(), names.end());
    return names;
  }

  Status make_directory(const std::string& path) override {
    return status_of(::mkdir(path.c_str(), 0777), "creating ", path);
  }

  Status rename_file(const std::string& from, const std::string& to) override {
    return status_of(std::rename(from.c_str(), to.c_str()), "renaming ", from, " to ", to);
  }

  Status rename_new(const std::string& from, const std::string& to) override {
    // Not every C library wraps renameat2(), and not every network file system has the flag.
    if (::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) ==
        0) {
      return {};
    }
    if (errno == EINVAL || errno == ENOSYS) return rename_without_flag(from, to);
    return errno_status(errno, concat("renaming ", from, " to ", to));
  }

  Status remove_file(const std::string& path) override {
    return status_of(::unlink(path.c_str()), "removing ", path);
  }

  Status remove_directory(const std::string& path) override {
    return status_of(::rmdir(path.c_str()), "removing ", path);
  }

  Status sync_directory(const std::string& path) override {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid()) return errno_status(errno, path);
    if (::fsync(fd.get()) != 0 && errno != EINVAL) {  // some file systems cannot sync a directory
      return errno_status(errno, concat("syncing ", path));
    }
    return {};
  }

  Result<MappedFile> map(const std::string& path) override {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return errno_status(errno, path);
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0) return errno_status(errno, path);
    if (!S_ISREG(status.st_mode)) {
      return error(StatusCode::kInvalidArgument, path, ": not a regular file");
    }
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size == 0) return MappedFile(path, nullptr, 0, identity_of(status));
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return errno_status(errno, concat("mapping ", path));
    return MappedFile(path, static_cast<const std::byte*>(data), size, identity_of(status));
  }

  Result<std::unique_ptr<FileLock>> lock(const std::string& path,
                                         std::chrono::milliseconds wait) override {
    constexpr std::chrono::milliseconds kPoll(20);
    const auto deadline = std::chrono::steady_clock::now() + wait;
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<FileLock> lock, try_lock(path));
      // The file may have been removed between opening and locking it.
      if (lock != nullptr) {
        DRIFTLESS_ASSIGN_OR_RETURN(const bool held, lock->held());
        if (held) return lock;
      }
      if (std::chrono::steady_clock::now() >= deadline) {
        return error(StatusCode::kBusy, path, ": another process holds the lock (waited ",
                     wait.count(), " ms); try again when it has finished");
      }
      if (lock == nullptr) std::this_thread::sleep_for(kPoll);
    }
  }

 private:
  // Null: another process holds it.
  static Result<std::unique_ptr<FileLock>> try_lock(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd < 0) return errno_status(errno, concat("opening the lock ", path));
    auto lock = std::make_unique<PosixLock>(fd, path);
    while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return std::unique_ptr<FileLock>();
      if (errno != EINTR) return errno_status(errno, concat("locking ", path));
    }
    return std::unique_ptr<FileLock>(std::move(lock));
  }

  static Result<std::unique_ptr<File>> open_file(const std::string& path, int flags,
                                                 std::string_view verb) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (fd < 0) return errno_status(errno, concat(verb, path));
    auto file = std::make_unique<PosixFile>(fd, path);
    struct stat status{};
    if (::fstat(fd, &status) != 0) return errno_status(errno, concat(verb, path));
    if (!S_ISREG(status.st_mode)) {
      return error(StatusCode::kInvalidArgument, path, ": not a regular file");
    }
    return std::unique_ptr<File>(std::move(file));
  }

  // For a file, link() fails if `to` exists. Directories cannot be linked: whatever appears at `to`
  // between the check and rename() is replaced only if it is an empty directory.
  Status rename_without_flag(const std::string& from, const std::string& to) {
    if (::link(from.c_str(), to.c_str()) == 0) return remove_file(from);
    if (errno == EEXIST || exists(*this, to)) return errno_status(EEXIST, to);
    return rename_file(from, to);
  }
};

}  // namespace

Status write_at(const Descriptor& file, std::uint64_t offset, std::span<const std::byte> bytes,
                std::string_view what) {
  return transfer(::pwrite, "writing ", file, offset, bytes, what);
}

Status read_at(const Descriptor& file, std::uint64_t offset, std::span<std::byte> bytes,
               std::string_view what) {
  return transfer(::pread, "reading ", file, offset, bytes, what);
}

FileSystem& posix_file_system() {
  static PosixFileSystem file_system;
  return file_system;
}

MappedFile::MappedFile(std::string path, const std::byte* data, std::uint64_t size,
                       const FileIdentity& identity)
    : path_(std::move(path)), size_(size), mapped_(data != nullptr), identity_(identity) {
  const auto unmap = [size](const std::byte* begin) {
    ::munmap(const_cast<std::byte*>(begin), size);
  };
  if (mapped_) data_.reset(data, unmap);
}

MappedFile::MappedFile(std::string path, std::shared_ptr<const void> owner,
                       std::span<const std::byte> bytes, MemoryKind kind)
    : path_(std::move(path)),
      data_(std::move(owner), bytes.data()),
      size_(bytes.size()),
      kind_(kind) {}

MappedFile MappedFile::slice(std::uint64_t offset, std::uint64_t size) const {
  MappedFile part(*this);
  if (size != 0) part.data_ = {data_, data_.get() + offset};
  part.size_ = size;
  return part;
}

void MappedFile::forget(std::uint64_t offset, std::uint64_t size) const {
  constexpr std::uint64_t kPage = 65536;  // a multiple of every page size in use
  const std::uint64_t begin = (offset + kPage - 1) / kPage * kPage;
  const std::uint64_t end = std::min<std::uint64_t>(offset + size, bytes().size()) / kPage * kPage;
  if (!mapped_ || begin >= end) return;
  ::madvise(const_cast<std::byte*>(data_.get()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace driftless
