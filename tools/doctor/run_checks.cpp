// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/descriptor.h"
#include "core/line_log.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMaxTextBytes = 600;
constexpr milliseconds kLastWait(300);  // for killed processes to disappear
constexpr milliseconds kTidyWait(500);  // after a signal, for short checks to remove their files
constexpr milliseconds kLook(200);      // interval between checks for a signal

// Shortens texts and makes them one line: findings contain messages of engines and other programs.
std::string some_words(std::string_view words) {
  const std::string text = one_line(words);
  return text.size() > kMaxTextBytes ? text.substr(0, kMaxTextBytes) + "..." : text;
}

void send(int pipe, const Finding& finding) {
  const nlohmann::json json = {some_words(finding.check), static_cast<int>(finding.state),
                               some_words(finding.finding), some_words(finding.next)};
  const std::string line =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t wrote = ::write(pipe, line.data() + done, line.size() - done);
    if (wrote < 0 && errno != EINTR) _exit(1);
    if (wrote > 0) done += static_cast<std::size_t>(wrote);
  }
}

// A check that runs in its own process.
class RunningCheck {
 public:
  RunningCheck(const Check& check, const Context& context) : check_(check) {
    std::array<int, 2> ends{-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
    pipe_ = Descriptor(ends[0]);
    const Descriptor write_end(ends[1]);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ != 0) {
      ::setpgid(pid_, pid_);
      return;
    }
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) _exit(1);
    check_.run(context, [&](const Finding& finding) { send(write_end.get(), finding); });
    _exit(0);
  }
  RunningCheck(const RunningCheck&) = delete;
  RunningCheck& operator=(const RunningCheck&) = delete;

  [[nodiscard]] int pipe() const { return pipe_.get(); }
  [[nodiscard]] bool open() const { return pipe_.valid(); }

  // Reads the available output; closes the pipe at its end.
  void read() {
    std::array<char, 4096> buffer{};
    const ssize_t got = ::read(pipe_.get(), buffer.data(), buffer.size());
    if (got > 0) text_.append(buffer.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) pipe_.reset();
  }

  void kill() const {
    if (pid_ > 0) ::kill(-pid_, SIGKILL);
  }
  // The exit status; nothing if the process still exists, because a hanging system call cannot be
  // killed.
  std::optional<int> reap(const Deadline& deadline) const {
    Backoff backoff(std::chrono::microseconds(200), milliseconds(10));
    int status = 0;
    do {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) return status;
    } while (backoff.sleep(deadline));
    return std::nullopt;
  }

  void finish(bool late, std::optional<int> status, std::vector<Row>& rows) const {
    std::string last;
    for (std::string_view rest = text_; !rest.empty();) {
      const std::size_t end = rest.find('\n');
      if (end == std::string_view::npos) break;
      const auto json = nlohmann::json::parse(rest.substr(0, end), nullptr, false);
      rest.remove_prefix(end + 1);
      if (!json.is_array() || json.size() != 4) continue;
      last = json[0].get<std::string>();
      rows.push_back({check_.group,
                      {last, static_cast<FindingState>(json[1].get<int>()),
                       json[2].get<std::string>(), json[3].get<std::string>()}});
    }
    const std::string group = check_.group.substr(0, check_.group.find(' '));
    const std::string next = check_.next_if_late.empty()
                                 ? concat("look at it alone: driftless doctor --only ", group)
                                 : check_.next_if_late;
    const std::string after = last.empty() ? "" : concat(" after the check '", last, "'");
    if (late) {
      rows.push_back(
          {check_.group,
           {"deadline", check_.late, concat("no answer in time", after, ": it hangs"), next}});
    } else if (pid_ < 0 || !status || *status != 0) {
      const bool signal = status && WIFSIGNALED(*status);
      rows.push_back(
          {check_.group,
           {"check", check_.late,
            concat("it failed", after, signal ? concat(", by signal ", WTERMSIG(*status)) : ""),
            next}});
    }
  }

 private:
  const Check& check_;
  Descriptor pipe_;
  pid_t pid_ = -1;
  std::string text_;
};

void read_all(std::vector<std::unique_ptr<RunningCheck>>& running, const Deadline& deadline) {
  while (!deadline.expired()) {
    std::vector<pollfd> waits;
    std::vector<RunningCheck*> open;
    for (const auto& each : running) {
      if (!each->open()) continue;
      waits.push_back({each->pipe(), POLLIN, 0});
      open.push_back(each.get());
    }
    if (open.empty()) return;
    const milliseconds wait = std::min(deadline.remaining(), kLook);
    if (::poll(waits.data(), waits.size(), static_cast<int>(wait.count())) <= 0) continue;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (waits[i].revents != 0) open[i]->read();
    }
  }
}

pid_t parent_of(const std::filesystem::path& process) {
  std::ifstream file(process / "stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // the name may contain any character
  pid_t parent = 0;
  char state = 0;
  if (name_end != std::string::npos)
    std::istringstream(text.substr(name_end + 1)) >> state >> parent;
  return parent;
}

void kill_children() {
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failed)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && parent_of(entry.path()) == ::getpid()) ::kill(pid, SIGKILL);
  }
}

// Ends the processes that checks started and left behind. Whatever their group or session (as the
// ranks of a killed mpirun), they have become children of this process, because it is a
// PR_SET_CHILD_SUBREAPER.
void end_descendants(const Deadline& deadline) {
  Backoff backoff(milliseconds(1), milliseconds(20));
  for (;;) {
    pid_t gone = 0;
    do gone = ::waitpid(-1, nullptr, WNOHANG);
    while (gone > 0);
    if (gone < 0 && errno == ECHILD) return;
    kill_children();
    if (!backoff.sleep(deadline)) return;
  }
}

}  // namespace

std::vector<Row> run_checks(std::span<const Check> checks, const Context& context) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::vector<std::unique_ptr<RunningCheck>> running;
  running.reserve(checks.size());
  for (const Check& check : checks) {
    running.push_back(std::make_unique<RunningCheck>(check, context));
  }
  read_all(running, context.deadline);
  if (context.deadline.stopped()) read_all(running, Deadline::after(kTidyWait));
  const Deadline gone = Deadline::after(kLastWait);
  std::vector<Row> rows;
  for (const auto& each : running) {
    const bool late = each->open();
    if (late) each->kill();
    each->finish(late, each->reap(gone), rows);
  }
  end_descendants(Deadline::after(kLastWait));
  return rows;
}

}  // namespace driftless::doctor
