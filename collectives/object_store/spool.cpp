// SPDX-License-Identifier: Apache-2.0
#include "collectives/object_store/spool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace driftless::object_store {
namespace {

std::string directory_or_default(std::string directory) {
  if (!directory.empty()) return directory;
  const char* const named = std::getenv("TMPDIR");
  return named == nullptr || *named == '\0' ? "/tmp" : named;
}

Status failed(const std::string& directory, std::string_view what) {
  const int number = errno;
  const bool full = number == ENOSPC || number == EDQUOT;
  return error(full ? StatusCode::kNoSpace : StatusCode::kIo, directory, ": ", what,
               " a spool file: ", std::strerror(number),
               "; road.object_store.spool_dir names another place");
}

Result<int> unnamed_file(const std::string& directory) {
  std::string path = join_path(directory, "driftless-spool-XXXXXX");
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return failed(directory, "making");
  (void)unlink(path.c_str());
  return file;
}

}  // namespace

Spool::Spool(std::string directory, std::uint64_t memory_bytes)
    : directory_(directory_or_default(std::move(directory))), memory_bytes_(memory_bytes) {}

Spool::~Spool() {
  if (file_ >= 0) (void)close(file_);
}

std::span<const std::byte> Spool::memory() const {
  const std::scoped_lock lock(mutex_);
  return memory_;
}

void Spool::release() {
  const std::scoped_lock lock(mutex_);
  memory_ = {};
  if (file_ >= 0) (void)close(std::exchange(file_, -1));
}

Status Spool::open_file() {
  DRIFTLESS_ASSIGN_OR_RETURN(file_, unnamed_file(directory_));
  const std::vector<std::byte> held = std::exchange(memory_, {});
  std::size_t done = 0;
  while (done < held.size()) {
    const ssize_t more =
        pwrite(file_, held.data() + done, held.size() - done, static_cast<off_t>(done));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return failed(directory_, "writing");
    done += static_cast<std::size_t>(more);
  }
  return {};
}

Status Spool::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t end = offset + bytes.size();
    if (file_ < 0 && end <= memory_bytes_) {
      if (memory_.size() < end) memory_.resize(end);
      if (!bytes.empty()) std::memcpy(memory_.data() + offset, bytes.data(), bytes.size());
      return {};
    }
    if (file_ < 0) DRIFTLESS_RETURN_IF_ERROR(open_file());
  }
  while (!bytes.empty()) {
    const ssize_t more = pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return failed(directory_, "writing");
    bytes = bytes.subspan(static_cast<std::size_t>(more));
    offset += static_cast<std::uint64_t>(more);
  }
  return {};
}

Status Spool::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  {
    const std::scoped_lock lock(mutex_);
    if (file_ < 0) {
      if (offset > memory_.size() || bytes.size() > memory_.size() - offset) {
        return error(StatusCode::kCorrupt, "a part of ", memory_.size(), " bytes was read from ",
                     offset, " to ", offset + bytes.size());
      }
      if (!bytes.empty()) std::memcpy(bytes.data(), memory_.data() + offset, bytes.size());
      return {};
    }
  }
  while (!bytes.empty()) {
    const ssize_t more = pread(file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return failed(directory_, "reading");
    if (more == 0) return error(StatusCode::kCorrupt, "a part has no bytes from ", offset, " on");
    bytes = bytes.subspan(static_cast<std::size_t>(more));
    offset += static_cast<std::uint64_t>(more);
  }
  return {};
}

Result<SpooledMemory> make_spooled_memory(const std::string& directory, std::uint64_t size_bytes,
                                          std::uint64_t memory_bytes) {
  if (size_bytes <= memory_bytes) {
    const std::shared_ptr<std::byte[]> memory(new (std::nothrow) std::byte[size_bytes]);
    if (memory == nullptr) {
      return error(StatusCode::kNoSpace, "no memory for a part of ", size_bytes, " bytes");
    }
    return SpooledMemory{memory, {memory.get(), size_bytes}};
  }
  const std::string place = directory_or_default(directory);
  DRIFTLESS_ASSIGN_OR_RETURN(const int file, unnamed_file(place));
  // Allocates the whole file first: a mapping of a file without disk space ends the process.
  const int allocated = posix_fallocate(file, 0, static_cast<off_t>(size_bytes));
  if (allocated != 0) {
    (void)close(file);
    errno = allocated;
    return failed(place, "making room in");
  }
  void* const data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  (void)close(file);
  if (data == MAP_FAILED) return failed(place, "mapping");
  const std::shared_ptr<void> owner(
      data, [size_bytes](void* mapped) { (void)munmap(mapped, size_bytes); });
  return SpooledMemory{owner, {static_cast<std::byte*>(data), size_bytes}};
}

}  // namespace driftless::object_store
