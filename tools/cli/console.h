// SPDX-License-Identifier: Apache-2.0
// The command's output: tables, sizes, a progress bar and errors, as text or JSON.
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
  kExitNotFound = 3,   // missing, or not complete yet
  kExitRefused = 4,    // damaged, or wrong run, base, layout or content
  kExitIo = 5,         // the operating system refused; no space
  kExitBusy = 6,       // locked by another process, or timed out
  kExitExists = 7,     // the output exists already
  kExitUnsupported = 8,
  kExitInternal = 70,
};
[[nodiscard]] int exit_code(StatusCode code);

// Options shared by all commands.
struct Common {
  bool json = false;
  unsigned threads = 0;  // 0: one per core
  [[nodiscard]] unsigned thread_count() const;
};

// After this call, if another process truncates a mapped file, the command ends with one line and
// kExitBusy. For commands that only read.
void end_if_files_shrink();

// Prints a failure that ends the command, as one line on stderr: "driftless: code: message".
void report_line(const Status& status);
// Prints a failure as one line on stderr, and with --json as an object on stdout. Returns the exit
// code.
int report(const Common& common, const Status& status);
// A JSON number if the text is a plain decimal number, otherwise a string.
[[nodiscard]] nlohmann::ordered_json number_or_text(const std::string& text);
void print_json(const nlohmann::ordered_json& json);

// The lines of print_table(). Cells are shown as one_line() returns them.
[[nodiscard]] std::vector<std::string> table_lines(const std::vector<std::string>& header,
                                                   std::vector<std::vector<std::string>> rows);
// Prints aligned columns. Columns of numbers (every cell begins with a digit, or is "-") are
// aligned to the right.
void print_table(const std::vector<std::string>& header,
                 const std::vector<std::vector<std::string>>& rows);
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);  // "12.3 MB"
[[nodiscard]] std::string fixed(double value, int digits);
[[nodiscard]] double ratio(std::uint64_t part, std::uint64_t whole);  // 0 if `whole` is 0

// A progress bar on stderr, if that is a terminal, for work that takes longer than a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::string_view label);
  ~ProgressBar();  // erases the bar
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Pass it to the library's options. The bar must outlive the work.
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
