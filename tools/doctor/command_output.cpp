// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/command_output.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "collectives/shared_fs/visibility_hook.h"
#include "tools/memory_file.h"

namespace driftless {
namespace {

constexpr std::size_t kMaxOutputBytes = std::size_t{64} << 10;

}  // namespace

CommandOutput run_command(const std::string& command,
                          std::vector<std::pair<std::string, std::string>> variables,
                          std::chrono::milliseconds wait) {
  const MemoryFile output;
  CommandOutput done;
  done.status = shared_fs::run_hook(
      {"doctor", concat("{ ", command, "; } > ", output.path(), " 2>&1"), std::move(variables)},
      wait, Deadline::after(wait));
  Result<std::string> text = read_text(posix_file_system(), output.path(), std::uint64_t{16} << 20);
  if (text.ok()) done.text = text->substr(0, kMaxOutputBytes);
  return done;
}

std::string first_line(const std::string& text) {
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    if (line.find_first_not_of(" \t\r-") != std::string_view::npos) return std::string(line);
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  }
  return {};
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return ::access(name.c_str(), X_OK) == 0 ? name : "";
  const char* const path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe)
  std::string_view rest = path == nullptr ? "/usr/bin:/bin" : path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    std::string candidate = join_path(folder.empty() ? "." : folder, name);
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    rest.remove_prefix(std::min(folder.size() + 1, rest.size()));
  }
  return {};
}

}  // namespace driftless
