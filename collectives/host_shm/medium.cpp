// SPDX-License-Identifier: Apache-2.0
#include "collectives/host_shm/medium.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "core/version.h"

namespace driftless {
namespace host_shm {
namespace {

constexpr std::size_t kMaxNameBytes = 64;
constexpr std::string_view kTemporarySuffix = ".tmp";

bool is_plain(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != '.' &&
         std::ranges::all_of(name, plain);
}

// Checks that this user owns the file, and that others have no access.
Status check_private(int fd, mode_t kind, const std::string& path) {
  struct stat found{};
  if (::fstat(fd, &found) != 0) return errno_status(errno, path);
  if ((found.st_mode & S_IFMT) != kind) {
    return error(StatusCode::kCorrupt, path, ": is not a ",
                 kind == S_IFDIR ? "directory" : "plain file", "; remove it");
  }
  if (found.st_uid != ::geteuid()) {
    return error(StatusCode::kCorrupt, path, ": belongs to user ", found.st_uid, ", not to ",
                 ::geteuid(), " who runs this; use another road.host_shm.name");
  }
  if ((found.st_mode & 077U) != 0) {
    return error(StatusCode::kCorrupt, path,
                 ": other users can access it; remove it: Driftless did not make it");
  }
  return {};
}

Status with_space_hint(Status status) {
  if (status.code() != StatusCode::kNoSpace) return status;
  return error(StatusCode::kNoSpace, status.message(),
               ": shared memory is full; enlarge that file system (a container's --shm-size), or "
               "lower road.host_shm.size or road.host_shm.versions");
}

}  // namespace

std::string record_name(const PublicationId& id) {
  return concat(id.kind == PublicationKind::kAnchor ? "a" : "s", version_string(id.version));
}

std::optional<PublicationId> parse_record_name(std::string_view name) {
  if (name.empty() || (name.front() != 'a' && name.front() != 's')) return std::nullopt;
  const auto version = parse_version_string(name.substr(1));
  if (!version.ok()) return std::nullopt;
  const PublicationId id{
      *version, name.front() == 'a' ? PublicationKind::kAnchor : PublicationKind::kVersion};
  if (record_name(id) != name) return std::nullopt;
  return id;
}

std::string segment_name(const PublicationId& id, std::string_view token, std::uint64_t index) {
  return concat(record_name(id), ".", token, ".", index);
}

Result<Directory> Directory::adopt(std::string path, int parent, const char* name, bool make) {
  if (make && ::mkdirat(parent, name, 0700) != 0 && errno != EEXIST) {
    return with_space_hint(errno_status(errno, concat("creating ", path)));
  }
  Descriptor fd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return errno_status(errno, path);
  DRIFTLESS_RETURN_IF_ERROR(check_private(fd.get(), S_IFDIR, path));
  return Directory(std::move(path), std::move(fd));
}

Result<Directory> Directory::open(const HostShmOptions& options, bool make) {
  const std::string path =
      join_path(options.dir, concat("driftless-", ::geteuid(), "-", options.name));
  return adopt(path, AT_FDCWD, path.c_str(), make);
}

Result<Directory> Directory::below(const char* name) const {
  return adopt(join_path(path_, name), fd_.get(), name, true);
}

Result<Descriptor> Directory::checked(int fd, const std::string& name) const {
  const std::string file = join_path(path_, name);
  if (fd < 0) return errno_status(errno, file);
  Descriptor owned(fd);
  DRIFTLESS_RETURN_IF_ERROR(check_private(owned.get(), S_IFREG, file));
  return owned;
}

Result<Descriptor> Directory::create(const std::string& name) const {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  Descriptor fd(::openat(fd_.get(), name.c_str(), flags, 0600));
  if (!fd.valid())
    return with_space_hint(errno_status(errno, concat("creating ", join_path(path_, name))));
  return fd;
}

Result<Descriptor> Directory::open_file(const std::string& name, bool write) const {
  const int flags = (write ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  return checked(::openat(fd_.get(), name.c_str(), flags), name);
}

Result<Descriptor> Directory::open_or_create(const std::string& name) const {
  const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  return checked(::openat(fd_.get(), name.c_str(), flags, 0600), name);
}

Result<std::string> Directory::read(const std::string& name, std::uint64_t max_bytes) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Descriptor file, open_file(name, false));
  return read_whole(file, max_bytes, join_path(path_, name));
}

Status Directory::replace(const std::string& name, std::string_view content) const {
  const std::string temporary = concat(name, kTemporarySuffix);
  DRIFTLESS_RETURN_IF_ERROR(remove(temporary));
  Status done = write_new(temporary, content);
  if (done.ok() && ::renameat(fd_.get(), temporary.c_str(), fd_.get(), name.c_str()) != 0) {
    done = errno_status(errno, concat("renaming to ", join_path(path_, name)));
  }
  if (!done.ok()) const Status ignored = remove(temporary);
  return done;
}

Status Directory::write_new(const std::string& temporary, std::string_view content) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const Descriptor file, create(temporary));
  return write_all(file, 0, std::as_bytes(std::span(content)), join_path(path_, temporary));
}

Status Directory::put_new(const std::string& temporary, const std::string& name) const {
  if (::linkat(fd_.get(), temporary.c_str(), fd_.get(), name.c_str(), 0) != 0) {
    return errno_status(errno, concat("naming ", join_path(path_, name)));
  }
  return remove(temporary);
}

Status Directory::remove(const std::string& name) const {
  if (::unlinkat(fd_.get(), name.c_str(), 0) == 0 || errno == ENOENT) return {};
  return errno_status(errno, concat("removing ", join_path(path_, name)));
}

Result<std::vector<std::string>> Directory::list() const {
  // A separate descriptor, because it contains the position in the directory.
  const int fd = ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno_status(errno, path_);
  DIR* handle = ::fdopendir(fd);
  if (handle == nullptr) {
    const int failure = errno;
    ::close(fd);
    return errno_status(failure, path_);
  }
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(handle)) {  // NOLINT(concurrency-mt-unsafe): own handle
    const std::string_view name(entry->d_name);
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int failure = errno;
  ::closedir(handle);
  if (failure != 0) return errno_status(failure, concat("listing ", path_));
  std::ranges::sort(names);
  return names;
}

bool Directory::is(const std::string& name, const Descriptor& file) const {
  struct stat there{};
  struct stat open{};
  return ::fstatat(fd_.get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
         ::fstat(file.get(), &open) == 0 && there.st_ino == open.st_ino &&
         there.st_dev == open.st_dev;
}

namespace {

constexpr std::uint64_t kMaxLockBytes = 64;

std::string holder_of(const Directory& directory) {
  const Result<std::string> text = directory.read(kLockName, kMaxLockBytes);
  return text.ok() && !text->empty() ? concat("process ", *text) : std::string("another process");
}

}  // namespace

Result<SenderLock> SenderLock::take(const Directory& directory) {
  const std::string what = join_path(directory.path(), kLockName);
  DRIFTLESS_ASSIGN_OR_RETURN(Descriptor file, directory.open_or_create(kLockName));
  DRIFTLESS_ASSIGN_OR_RETURN(const bool taken, lock_file(file, what));
  if (!taken || !directory.is(kLockName, file)) {
    return error(StatusCode::kBusy, directory.path(), ": ", holder_of(directory),
                 " sends here; stop it, or use another road.host_shm.name");
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(file.get(), 0) != 0) return errno_status(errno, what);
  DRIFTLESS_RETURN_IF_ERROR(write_all(file, 0, std::as_bytes(std::span(pid)), what));
  return SenderLock(std::move(file));
}

Status SenderLock::check(const Directory& directory) const {
  if (directory.is(kLockName, file_)) return {};
  const bool none = directory.open_file(kLockName, false).status().code() == StatusCode::kNotFound;
  return error(StatusCode::kWrongRun, join_path(directory.path(), kLockName), ": process ",
               ::getpid(), " does not hold the lock any more: ",
               none ? std::string("its file was removed")
                    : concat(holder_of(directory), " has taken it over"),
               ". Nothing more is sent by this process; start it again once no other sends here, "
               "or use another road.host_shm.name");
}

Status write_all(const Descriptor& file, std::uint64_t offset, std::span<const std::byte> bytes,
                 std::string_view what) {
  return with_space_hint(write_at(file, offset, bytes, what));
}

Result<std::string> read_whole(const Descriptor& file, std::uint64_t max_bytes,
                               std::string_view what) {
  struct stat found{};
  if (::fstat(file.get(), &found) != 0) return errno_status(errno, what);
  const auto size = static_cast<std::uint64_t>(found.st_size);
  if (size > max_bytes) {
    return error(StatusCode::kCorrupt, what, ": ", size, " bytes, at most ", max_bytes,
                 " are expected");
  }
  std::string text(size, '\0');
  DRIFTLESS_RETURN_IF_ERROR(read_at(file, 0, std::as_writable_bytes(std::span(text)), what));
  return text;
}

Result<bool> lock_file(const Descriptor& file, std::string_view what) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) return errno_status(errno, concat("locking ", what));
  }
  return true;
}

}  // namespace host_shm

Status check_host_shm(const HostShmOptions& options) {
  const std::chrono::milliseconds none(0);
  if (!host_shm::is_plain(options.name)) {
    return error(StatusCode::kInvalidArgument, "road.host_shm.name: expected at most ",
                 host_shm::kMaxNameBytes,
                 " letters, digits, '.', '_' or '-', and no dot at the beginning");
  }
  if (options.dir.empty() || options.size_bytes == 0 || options.versions == 0) {
    return error(StatusCode::kInvalidArgument,
                 "road.host_shm: dir, size and versions must not be empty or 0");
  }
  if (options.poll_first <= none || options.poll_longest < options.poll_first ||
      options.patience <= none) {
    return error(StatusCode::kInvalidArgument,
                 "host_shm: poll_first and patience must be positive, and poll_first at most "
                 "poll_longest");
  }
  return {};
}

Status publish_host_shm_end(const HostShmOptions& options, std::string_view text) {
  DRIFTLESS_RETURN_IF_ERROR(check_host_shm(options));
  DRIFTLESS_ASSIGN_OR_RETURN(const auto directory, host_shm::Directory::open(options, true));
  return directory.replace(host_shm::kEndName, text);
}

Result<std::optional<std::string>> fetch_host_shm_end(const HostShmOptions& options) {
  DRIFTLESS_RETURN_IF_ERROR(check_host_shm(options));
  const auto directory = host_shm::Directory::open(options, false);
  Result<std::string> text = directory.ok()
                                 ? directory->read(host_shm::kEndName, host_shm::kMaxEndBytes)
                                 : directory.status();
  if (text.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
  DRIFTLESS_RETURN_IF_ERROR(text.status());
  return std::optional<std::string>(std::move(*text));
}

}  // namespace driftless
