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

// write(), and its errno. A pipe whose reader has left is an error like any other: the signal that
// it sends to this thread is taken back.
std::pair<ssize_t, int> write_quietly(int file, std::string_view text) {
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  const bool others = sigismember(&pending, SIGPIPE) == 1;  // not ours to take
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
  // A pipe without a reader is refused, and one that is full loses lines: nobody waits for them.
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
