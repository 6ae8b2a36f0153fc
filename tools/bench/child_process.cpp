// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>
#include <utility>

namespace driftless::bench {
namespace {

constexpr int kFirstInput = 3;

Status add_descriptors(posix_spawn_file_actions_t& actions, const MemoryFile& output,
                       const MemoryFile& errors, const std::vector<const MemoryFile*>& inputs,
                       std::vector<int>& copies) {
  // Copies far above the numbers that they are to get, so that none is overwritten before its turn.
  const auto hand_over = [&](const MemoryFile& file, int as) -> Status {
    const int copy = ::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 100);
    if (copy < 0) return errno_status(errno, "duplicating a descriptor");
    copies.push_back(copy);
    const int failed = ::posix_spawn_file_actions_adddup2(&actions, copy, as);
    return failed == 0 ? Status{} : errno_status(failed, "preparing a program's descriptors");
  };
  DRIFTLESS_RETURN_IF_ERROR(hand_over(output, 1));
  DRIFTLESS_RETURN_IF_ERROR(hand_over(errors, 2));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    DRIFTLESS_RETURN_IF_ERROR(hand_over(*inputs[i], kFirstInput + static_cast<int>(i)));
  }
  return {};
}

Result<pid_t> start(const std::vector<std::string>& arguments, const MemoryFile& output,
                    const MemoryFile& errors, const std::vector<const MemoryFile*>& inputs) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  if (const int failed = ::posix_spawn_file_actions_init(&actions); failed != 0) {
    return errno_status(failed, "starting a program");
  }
  std::vector<int> copies;
  Status status = add_descriptors(actions, output, errors, inputs, copies);
  pid_t child = 0;
  if (status.ok()) {
    const int failed = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
    if (failed != 0) status = errno_status(failed, arguments[0]);
  }
  for (const int copy : copies) ::close(copy);
  ::posix_spawn_file_actions_destroy(&actions);
  if (!status.ok()) return status;
  return child;
}

// The exit code, as a shell gives it.
Result<int> wait_for(pid_t child, std::chrono::milliseconds limit, const std::string& program) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  bool late = false;
  while (true) {
    int state = 0;
    const pid_t ended = ::waitpid(child, &state, late ? 0 : WNOHANG);
    if (ended < 0 && errno != EINTR) return errno_status(errno, "waiting for " + program);
    if (ended == child && late) {
      return error(StatusCode::kDeadlineExceeded, program, " did not end within ", limit.count(),
                   " ms");
    }
    if (ended == child) return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    if (!late && std::chrono::steady_clock::now() >= deadline) {
      ::kill(child, SIGKILL);
      late = true;
    } else if (!late) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

}  // namespace

Result<MemoryFile> MemoryFile::create() {
  const int descriptor = ::memfd_create("driftless-bench", MFD_CLOEXEC);
  if (descriptor < 0) return errno_status(errno, "a file in memory");
  return MemoryFile(descriptor);
}

MemoryFile::MemoryFile(MemoryFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

MemoryFile::~MemoryFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status MemoryFile::write(std::span<const std::byte> bytes) {
  struct stat info{};
  if (::fstat(descriptor_, &info) != 0) return errno_status(errno, "a file in memory");
  off_t at = info.st_size;
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return errno_status(errno, "writing to a file in memory");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += written;
  }
  return {};
}

Result<std::string> MemoryFile::text() const {
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t got =
        ::pread(descriptor_, buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_status(errno, "reading a file in memory");
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

Result<ProgramResult> run_program(const std::vector<std::string>& arguments,
                                  const std::vector<const MemoryFile*>& inputs,
                                  std::chrono::milliseconds limit) {
  DRIFTLESS_ASSIGN_OR_RETURN(const MemoryFile output, MemoryFile::create());
  DRIFTLESS_ASSIGN_OR_RETURN(const MemoryFile errors, MemoryFile::create());
  DRIFTLESS_ASSIGN_OR_RETURN(const pid_t child, start(arguments, output, errors, inputs));
  ProgramResult result;
  DRIFTLESS_ASSIGN_OR_RETURN(result.exit_code, wait_for(child, limit, arguments[0]));
  DRIFTLESS_ASSIGN_OR_RETURN(result.output, output.text());
  DRIFTLESS_ASSIGN_OR_RETURN(result.errors, errors.text());
  return result;
}

}  // namespace driftless::bench
