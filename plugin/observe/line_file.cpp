// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/line_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

namespace driftless {
namespace {

// Calls write() and returns its result and errno. If the reader of a pipe has left, write() also
// raises SIGPIPE for this thread: the signal is removed, and the failure treated like any other.
std::pair<ssize_t, int> write_quietly(int file, std::string_view text) {
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  // A SIGPIPE that was pending before is not ours.
  const bool others = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  ssize_t written = -1;
  do {
    written = ::write(file, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  const int failed = written < 0 ? errno : 0;
  constexpr timespec kNow{};
  if (failed == EPIPE && !others) sigtimedwait(&pipe, nullptr, &kNow);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return {written, failed};
}

}  // namespace

Result<std::unique_ptr<LineFile>> LineFile::open(std::string key, std::string path) {
  std::string name = concat(key, ": ", path);
  // Never block: a pipe without a reader is refused, and a full pipe loses lines.
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  if (!fd.valid()) return errno_status(errno, name);
  return std::unique_ptr<LineFile>(new LineFile(std::move(name), std::move(fd)));
}

Status LineFile::write(std::string_view line, std::uint64_t version) {
  const std::string text = concat(torn_ ? "\n" : "", line, "\n");
  const auto [written, failed] = write_quietly(file_.get(), text);
  const int reason = written < 0 ? failed : ENOSPC;
  if (written == static_cast<ssize_t>(text.size())) {
    torn_ = false;
    return {};
  }
  torn_ = torn_ || written > 0;
  if (++dropped_ > 1) return {};
  return errno_status(
      reason, concat(name_, ": lines are lost from version ", version, " on; the job goes on"));
}

}  // namespace driftless
