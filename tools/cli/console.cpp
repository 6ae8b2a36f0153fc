// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/console.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/line_log.h"
#include "core/parallel.h"
#include "plugin/job/metrics.h"

namespace driftless::cli {
namespace {

extern "C" void end_by_bus_error(int) {
  constexpr std::string_view kLine =
      "driftless: busy: a file was truncated while it was read; try again\n";
  [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  _exit(kExitBusy);
}

}  // namespace

int exit_code(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return kExitOk;
    case StatusCode::kInvalidArgument: return kExitUsage;
    case StatusCode::kNotFound:
    case StatusCode::kIncomplete: return kExitNotFound;
    case StatusCode::kCorrupt:
    case StatusCode::kWrongRun:
    case StatusCode::kWrongBase:
    case StatusCode::kWrongLayout:
    case StatusCode::kMismatch: return kExitRefused;
    case StatusCode::kIo:
    case StatusCode::kNoSpace: return kExitIo;
    case StatusCode::kBusy:
    case StatusCode::kDeadlineExceeded: return kExitBusy;
    case StatusCode::kAlreadyExists: return kExitExists;
    case StatusCode::kUnsupported: return kExitUnsupported;
    case StatusCode::kInternal: return kExitInternal;
  }
  return kExitInternal;
}

void end_if_files_shrink() {
  struct sigaction action{};
  action.sa_handler = end_by_bus_error;
  sigaction(SIGBUS, &action, nullptr);
}

unsigned Common::thread_count() const { return threads == 0 ? default_threads() : threads; }

void report_line(const Status& status) {
  process_log().flush();
  // Names from hostile files are made harmless here: the message is one line, whatever they
  // contain. One write, because other ranks write there, too.
  std::cerr << concat("driftless: ", one_line(status.to_string()), "\n");
}

int report(const Common& common, const Status& status) {
  report_line(status);
  if (common.json) {
    nlohmann::ordered_json json;
    json["error"] = {{"code", to_string(status.code())},
                     {"message", without_users(status.message())}};
    print_json(json);
  }
  return exit_code(status.code());
}

nlohmann::ordered_json number_or_text(const std::string& text) {
  constexpr std::size_t kMostDigits = 19;  // longer numbers are hashes
  const bool number = !text.empty() && text.size() <= kMostDigits &&
                      (text == "0" || text[0] != '0' || text.starts_with("0.")) &&
                      text.find_first_not_of("0123456789.") == std::string::npos &&
                      nlohmann::ordered_json::accept(text);
  return number ? nlohmann::ordered_json::parse(text) : nlohmann::ordered_json(text);
}

void print_json(const nlohmann::ordered_json& json) {
  std::cout << json_line(json) << "\n" << std::flush;
}

std::vector<std::string> table_lines(const std::vector<std::string>& header,
                                     std::vector<std::vector<std::string>> rows) {
  for (auto& row : rows) {
    for (std::string& cell : row) cell = one_line(cell);
  }
  std::vector<std::size_t> widths(header.size());
  std::vector<bool> right(header.size(), true);
  for (std::size_t column = 0; column < header.size(); ++column) {
    widths[column] = header[column].size();
    for (const auto& row : rows) {
      const std::string& cell = row[column];
      widths[column] = std::max(widths[column], cell.size());
      const bool number = cell.empty() || cell == "-" || cell == "?" ||
                          std::isdigit(static_cast<unsigned char>(cell[0])) != 0;
      right[column] = right[column] && number;
    }
  }
  std::vector<std::string> lines;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (std::size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - row[column].size(), ' ');
      if (column > 0) line += "  ";
      line += right[column] ? padding + row[column] : row[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  };
  add(header);
  for (const auto& row : rows) add(row);
  return lines;
}

void print_table(const std::vector<std::string>& header,
                 const std::vector<std::vector<std::string>>& rows) {
  for (const std::string& line : table_lines(header, rows)) std::cout << line << "\n";
}

double ratio(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

std::string fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fixed(value, unit == 0 ? 0 : (value < 10 ? 2 : 1)) + " " + kUnits[unit];
}

ProgressBar::ProgressBar(std::string_view label)
    : label_(label),
      terminal_(::isatty(STDERR_FILENO) == 1),
      begin_(std::chrono::steady_clock::now()),
      drawn_(begin_) {}

ProgressBar::~ProgressBar() {
  if (visible_) std::cerr << "\r\033[K" << std::flush;
}

Progress ProgressBar::callback() {
  if (!terminal_) return {};
  return [this](std::uint64_t done, std::uint64_t total) { update(done, total); };
}

void ProgressBar::update(std::uint64_t done, std::uint64_t total) {
  constexpr int kWidth = 30;
  const std::scoped_lock lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - begin_ < std::chrono::seconds(1) || now - drawn_ < std::chrono::milliseconds(100)) {
    return;
  }
  drawn_ = now;
  visible_ = true;
  const double share =
      total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const double elapsed = std::chrono::duration<double>(now - begin_).count();
  const auto filled = static_cast<std::size_t>(share * kWidth);
  std::cerr << "\r\033[K" << label_ << " [" << std::string(filled, '#')
            << std::string(kWidth - filled, '.') << "] " << fixed(share * 100, 0) << " %  "
            << human_bytes(done) << " of " << human_bytes(total) << ", "
            << (share > 0 ? fixed(elapsed / share - elapsed, 0) : "?") << " s left" << std::flush;
}

}  // namespace driftless::cli
