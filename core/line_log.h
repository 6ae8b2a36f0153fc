// SPDX-License-Identifier: Apache-2.0
// LineLog: the log lines of a process. Each has the UTC time and the process' name:
//
//   2026-11-18T20:01:02.123Z driftless trainer.0: still waiting after 5 s: nothing from rollout 1
//
// A line that comes again within kWindow is counted. Its count is written when the window is over
// and the next line comes, or by flush(): "... (repeated 14 times in 30 s)". Any thread.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace driftless {

class LineLog {
 public:
  static constexpr std::chrono::seconds kWindow{30};
  static constexpr std::size_t kMostRecent = 64;  // lines that a new one is compared with

  struct Moment {
    std::chrono::steady_clock::time_point steady;
    std::chrono::system_clock::time_point utc;
    [[nodiscard]] static Moment now() {
      return {std::chrono::steady_clock::now(), std::chrono::system_clock::now()};
    }
  };
  // Receives a line with its newline; one call at a time.
  using Write = std::function<void(std::string_view)>;

  explicit LineLog(Write write) : write_(std::move(write)) {}
  // "trainer.0"; empty: none.
  void set_name(std::string_view name);
  // Writes the line in the form that one_line() returns, or counts it as a repetition.
  void add(std::string_view line, const Moment& now);
  // Writes the counts that are not written yet.
  void flush(const Moment& now);

 private:
  struct Recent {
    std::string line;
    std::chrono::steady_clock::time_point since;  // when it was last written
    unsigned repeats = 0;                         // since then
  };
  void write(std::string_view line, const Moment& now);
  void write_count(Recent& recent, const Moment& now);

  std::mutex mutex_;
  Write write_;
  std::string name_;
  std::vector<Recent> recent_;  // oldest first
};

// The log of this process. The system's Environment::log() adds lines here, as warnings. Any
// thread.
class ProcessLog {
 public:
  // Warnings go to stderr, progress goes to stdout.
  void warning(std::string_view line) { warnings_.add(line, LineLog::Moment::now()); }
  void event(std::string_view line) { events_.add(line, LineLog::Moment::now()); }
  void set_name(std::string_view name);
  void flush();  // before the process ends

 private:
  friend ProcessLog& process_log();
  ProcessLog();
  LineLog warnings_, events_;
};
[[nodiscard]] ProcessLog& process_log();
// Makes `log` the process_log() from now on. A library that is loaded at run time has its own copy
// of this code; with this call it writes to the log of its loader. Call it before any line is
// written.
void use_process_log(ProcessLog& log);

// `text` on one line, safe to show to people: control characters, invisible characters and those
// that turn the direction of text appear as their code (\u202e), bytes that are not UTF-8 as \x9b,
// line ends as spaces. Users and passwords in URLs are removed.
[[nodiscard]] std::string one_line(std::string_view text);
// `text` without "user:password@" in its URLs. Every address in a log, a record or an error passes
// through here.
[[nodiscard]] std::string without_users(std::string_view text);

}  // namespace driftless
