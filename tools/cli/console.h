// SPDX-License-Identifier: Apache-2.0
// What the command shows: tables, sizes, a progress bar, errors; for people or as JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/counted.h"
#include "core/status.h"
#include "plugin/targets/version_stager.h"

namespace driftless::cli {

// Exit codes, documented in docs/operate/command.md and by `driftless --help`.
enum ExitCode : int {
  kExitOk = 0,
  kExitDifferent = 1,  // verify: not identical
  kExitUsage = 2,      // wrong options or arguments
  kExitNotFound = 3,   // missing, or not whole yet
  kExitRefused = 4,    // damaged, or the wrong run, base, layout or content
  kExitIo = 5,         // the operating system refused; no space
  kExitBusy = 6,       // locked by another process, or out of time
  kExitExists = 7,     // something is there already
  kExitUnsupported = 8,
  kExitInternal = 70,
};
[[nodiscard]] int exit_code(StatusCode code);

// Options that every command has.
struct Common {
  bool json = false;
  unsigned threads = 0;  // 0: one per core
  [[nodiscard]] unsigned thread_count() const;
};

// From now on a mapped file that somebody truncates ends the command with one line and kExitBusy.
// For commands that only read.
void end_if_files_shrink();

// A failure that ends the command, as one line on stderr: "driftless: code: message".
void report_line(const Status& status);
// A failure as one line on stderr (and as an object on stdout with --json). Returns the exit code.
int report(const Common& common, const Status& status);
// A JSON number if the text is one, as people write it.
[[nodiscard]] nlohmann::ordered_json number_or_text(const std::string& text);
void print_json(const nlohmann::ordered_json& json);

// As print_table() prints them; cells from outside have no control characters there.
[[nodiscard]] std::vector<std::string> table_lines(const std::vector<std::string>& header,
                                                   std::vector<std::vector<std::string>> rows);
// Columns aligned: those of numbers (every cell begins with a digit, or is "-") to the right.
void print_table(const std::vector<std::string>& header,
                 const std::vector<std::vector<std::string>>& rows);
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);  // "12.3 MB"
[[nodiscard]] std::string fixed(double value, int digits);
[[nodiscard]] double ratio(std::uint64_t part, std::uint64_t whole);  // 0 if `whole` is

// A bar on stderr, if that is a terminal, for work that takes longer than a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::string_view label);
  ~ProgressBar();  // wipes the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // For the library's options. The bar must outlive the work.
  [[nodiscard]] Progress callback();

 private:
  void update(std::uint64_t done, std::uint64_t total);

  std::string label_;
  bool terminal_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point drawn_;
  bool visible_ = false;
};

}  // namespace driftless::cli
