// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/publisher_lock.h"

#include <unistd.h>

#include <array>

#include "collectives/shared_fs/medium.h"
#include "core/hash128.h"

namespace driftless::shared_fs {
namespace {

constexpr std::size_t kSessionDigits = 32;
constexpr std::size_t kLockBytes = 256;  // always: the file is written in place
constexpr std::uint64_t kMaxLockBytes = 4096;

std::string this_process() {
  std::array<char, 128> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return concat("process ", ::getpid(), " on ", host.data());
}

std::string session_in(const std::string& text) {
  const std::string session = text.substr(0, kSessionDigits);
  return hash128_from_hex(session).ok() ? session : std::string();
}

std::string owner_in(const std::string& text) {
  if (session_in(text).empty()) return "another process";
  const std::size_t end = text.find_last_not_of(" \n");
  return text.substr(kSessionDigits + 1, end == std::string::npos ? end : end - kSessionDigits);
}

}  // namespace

Result<PublisherLock> PublisherLock::take(FileSystem& fs, const std::string& dir,
                                          std::chrono::milliseconds wait) {
  PublisherLock mine(fs, join_path(dir, kLockName));
  Result<std::unique_ptr<FileLock>> lock = fs.lock(mine.path_, wait);
  if (lock.status().code() == StatusCode::kBusy) {
    const Result<std::string> text = mine.read();
    return error(StatusCode::kBusy, dir, ": another publisher (",
                 text.ok() ? owner_in(*text) : "another process", ") holds this directory, waited ",
                 wait.count(), " ms; stop it, or publish to another directory");
  }
  DRIFTLESS_RETURN_IF_ERROR(lock.status());
  mine.lock_ = std::move(*lock);
  mine.session_ = to_hex(random_hash128());
  mine.owner_ = this_process();
  mine.kept_ = true;
  std::string text = concat(mine.session_, " ", mine.owner_);
  text.resize(kLockBytes - 1, ' ');
  text += '\n';
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.open(mine.path_));
  DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, std::as_bytes(std::span(text))));
  DRIFTLESS_RETURN_IF_ERROR(mine.check());
  return mine;
}

PublisherLock PublisherLock::follow(FileSystem& fs, const std::string& dir) {
  return {fs, join_path(dir, kLockName)};
}

Result<std::string> PublisherLock::read() const {
  Result<std::string> text = read_small(*fs_, path_, kMaxLockBytes);
  if (text.status().code() == StatusCode::kNotFound) return std::string();
  return text;
}

Status PublisherLock::check() {
  bool held = true;
  if (lock_ != nullptr) {
    DRIFTLESS_ASSIGN_OR_RETURN(held, lock_->held());
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string now, read());
  if (!kept_) {
    session_ = session_in(now);
    owner_ = owner_in(now);
    return {};
  }
  return held && session_in(now) == session_ ? Status() : fenced(now);
}

Status PublisherLock::fenced(const std::string& now) const {
  const std::string what = now.empty()
                               ? std::string("the file was removed")
                               : concat(owner_in(now), " has taken the directory over since");
  return error(StatusCode::kWrongRun, path_, ": ", owner_,
               " does not hold the lock any more: ", what,
               ". Nothing more is published by this run; stop it, and start it again once no other "
               "publishes here (it resumes from what is there), or use another directory");
}

}  // namespace driftless::shared_fs
