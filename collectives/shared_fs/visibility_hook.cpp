// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/visibility_hook.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "core/descriptor.h"

extern char** environ;  // NOLINT: passed on to the command unread

namespace driftless::shared_fs {
namespace {

constexpr std::size_t kMaxTailBytes = 400;
constexpr std::chrono::milliseconds kLastWait(1'000);  // until a killed process has ended

// The environment, with the hook's variables replacing those of the same name.
class Environment {
 public:
  explicit Environment(const VisibilityHook& hook) {
    for (const auto& [name, value] : hook.variables) {
      entries_.push_back(concat(name, "=", value));
    }
    for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      const bool replaced = std::ranges::any_of(hook.variables, [&](const auto& variable) {
        return text.starts_with(concat(variable.first, "="));
      });
      if (!replaced) entries_.emplace_back(text);
    }
    for (std::string& entry : entries_) pointers_.push_back(entry.data());
    pointers_.push_back(nullptr);
  }
  [[nodiscard]] char** get() { return pointers_.data(); }

 private:
  std::vector<std::string> entries_;
  std::vector<char*> pointers_;
};

// Both ends are closed by exec, and by the destructors.
struct Pipe {
  Descriptor read_end, write_end;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno_status(errno, "making a pipe");
  Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  // Only this end is non-blocking: both processes would share the flag on the other end.
  if (::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return errno_status(errno, "making a pipe");
  return pipe;
}

// The arguments of posix_spawn(). Freed by the destructor.
class SpawnPlan {
 public:
  explicit SpawnPlan(int stderr_fd) {
    ::posix_spawn_file_actions_init(&actions_);
    // This comes first, because the pipe may itself be 0 or 1 in a process without these.
    ::posix_spawn_file_actions_adddup2(&actions_, stderr_fd, 2);
    ::posix_spawn_file_actions_addopen(&actions_, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions_, 1, "/dev/null", O_WRONLY, 0);
    ::posix_spawnattr_init(&attributes_);
    // A trainer may block or ignore signals; a command expects the defaults.
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  [[nodiscard]] Result<pid_t> spawn(const std::string& command, char** environment) const {
    std::string shell("sh");
    std::string flag("-c");
    std::string text(command);
    std::array<char*, 4> arguments{shell.data(), flag.data(), text.data(), nullptr};
    pid_t pid = 0;
    const int failure =
        ::posix_spawn(&pid, "/bin/sh", &actions_, &attributes_, arguments.data(), environment);
    if (failure != 0) return errno_status(failure, "starting /bin/sh");
    return pid;
  }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

// The end of the command's output to stderr.
class Tail {
 public:
  // Reads the available output; false at its end.
  bool read(int fd) {
    std::array<char, 4096> buffer{};
    for (;;) {
      const ssize_t got = ::read(fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
      if (got == 0) return false;
      text_.append(buffer.data(), static_cast<std::size_t>(got));
      if (text_.size() > kMaxTailBytes) text_.erase(0, text_.size() - kMaxTailBytes);
    }
  }
  // As one line.
  [[nodiscard]] std::string line() const {
    std::string line;
    for (const char c : text_) line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    line.erase(line.find_last_not_of(' ') + 1);
    return line.empty() ? line : concat(": ", line);
  }

 private:
  std::string text_;
};

struct Ended {
  int status = 0;  // of waitpid()
  int error = 0;   // or the errno if it is unknown
};

std::optional<Ended> look_for_end(pid_t pid) {
  Ended ended;
  const pid_t found = ::waitpid(pid, &ended.status, WNOHANG);
  if (found == 0 || (found < 0 && errno == EINTR)) return std::nullopt;
  if (found < 0) ended.error = errno;
  return ended;
}

// Waits until the shell has ended or the deadline has passed, and reads its stderr meanwhile.
std::optional<Ended> wait_for_end(pid_t pid, Descriptor& output, Tail& tail,
                                  const Deadline& deadline) {
  std::chrono::milliseconds nap(1);
  for (;;) {
    if (const auto ended = look_for_end(pid); ended.has_value()) return ended;
    if (deadline.expired()) return std::nullopt;
    // A closed pipe would end each poll at once, so then it only sleeps.
    pollfd readable{output.get(), POLLIN, 0};
    const auto wait = static_cast<int>(std::min(nap, deadline.remaining()).count());
    const bool readable_now = ::poll(&readable, output.valid() ? 1 : 0, wait) > 0;
    if (readable_now && !tail.read(output.get())) output.reset();
    nap = std::min(nap * 2, std::chrono::milliseconds(20));
  }
}

// Kills the group and reaps the shell. False if it did not end: a process that waits for a stalled
// file system cannot be killed, and is not waited for.
bool kill_group(pid_t pid) {
  ::kill(-pid, SIGKILL);
  Backoff backoff(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
  const Deadline deadline = Deadline::after(kLastWait);
  do {
    if (look_for_end(pid).has_value()) return true;
  } while (backoff.sleep(deadline));
  return false;
}

Status outcome(const std::string& what, const Ended& ended, const Tail& tail) {
  if (ended.error != 0) {
    return errno_status(ended.error, concat(what,
                                            ": its exit status is unknown (does this "
                                            "process ignore SIGCHLD?)"));
  }
  if (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0) return {};
  if (WIFSIGNALED(ended.status)) {
    return error(StatusCode::kIo, what, ": ended by signal ", WTERMSIG(ended.status), tail.line());
  }
  return error(StatusCode::kIo, what, ": exited with status ", WEXITSTATUS(ended.status),
               tail.line());
}

}  // namespace

Status run_hook(const VisibilityHook& hook, std::chrono::milliseconds timeout,
                const Deadline& deadline) {
  if (hook.command.empty()) return {};
  const std::string what = concat(hook.name, " hook '", hook.command, "'");
  const Deadline end = deadline.sooner(timeout);
  DRIFTLESS_RETURN_IF_ERROR(end.check(what));
  Result<Pipe> pipe = make_pipe();
  if (!pipe.ok()) return pipe.status().with_context(what);
  Environment environment(hook);
  const auto pid = SpawnPlan(pipe->write_end.get()).spawn(hook.command, environment.get());
  if (!pid.ok()) return pid.status().with_context(what);
  pipe->write_end.reset();
  Tail tail;
  const std::optional<Ended> ended = wait_for_end(*pid, pipe->read_end, tail, end);
  if (!ended.has_value()) {
    const bool gone = kill_group(*pid);
    return end.check(what).with_context(gone ? "killed" : "cannot be killed");
  }
  if (pipe->read_end.valid()) tail.read(pipe->read_end.get());
  return outcome(what, *ended, tail);
}

Status RepeatedHook::run() {
  const auto now = Deadline::Clock::now();
  if (ended_ && now - *ended_ < pause_) return {};
  const Status shown = run_hook(hook_, timeout_, Deadline::after(timeout_));
  if (shown.code() == StatusCode::kDeadlineExceeded) {
    return error(StatusCode::kIo, shown.message(), " (road.shared_fs.hook_timeout)");
  }
  DRIFTLESS_RETURN_IF_ERROR(shown);
  ended_ = Deadline::Clock::now();
  return {};
}

Status run_after_publish(const SharedFsOptions& options, const std::string& version_dir,
                         const Deadline& deadline) {
  const VisibilityHook hook{
      "after_publish",
      options.after_publish,
      {{"DRIFTLESS_DIR", options.dir}, {"DRIFTLESS_VERSION_DIR", version_dir}}};
  return run_hook(hook, options.hook_timeout, deadline)
      .with_context(concat(version_dir, " is published, but"));
}

RepeatedHook before_read_hook(const SharedFsOptions& options) {
  return {{"before_read", options.before_read, {{"DRIFTLESS_DIR", options.dir}}},
          options.hook_timeout,
          options.poll_first};
}

}  // namespace driftless::shared_fs
