// SPDX-License-Identifier: Apache-2.0
// Runs a command of the host (mpirun, python3) under a deadline and keeps its output.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"

namespace driftless {

struct CommandOutput {
  Status status;     // kIo: it failed; kDeadlineExceeded: it was killed, with all its children
  std::string text;  // stdout and stderr, 64 KiB at most
};

// `command` is passed to /bin/sh; `variables` are added to its environment. Put text from outside
// into a variable, never into the command.
[[nodiscard]] CommandOutput run_command(const std::string& command,
                                        std::vector<std::pair<std::string, std::string>> variables,
                                        std::chrono::milliseconds wait);

// The first line that has more than spaces and dashes; empty: none.
[[nodiscard]] std::string first_line(const std::string& text);

// The path of a program on PATH; empty: it was not found.
[[nodiscard]] std::string find_program(const std::string& name);

}  // namespace driftless
