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
  Status status;     // kIo if it failed; kDeadlineExceeded: it was killed, with all that it started
  std::string text;  // stdout and stderr, 64 KiB at most
};

// `command` is for /bin/sh; `variables` are added to its environment: text from outside goes there,
// not into the command.
[[nodiscard]] CommandOutput run_command(const std::string& command,
                                        std::vector<std::pair<std::string, std::string>> variables,
                                        std::chrono::milliseconds wait);

// The first line that has a printable character; empty: none.
[[nodiscard]] std::string first_line(const std::string& text);

// The path of a program on PATH; empty: it is not there.
[[nodiscard]] std::string find_program(const std::string& name);

}  // namespace driftless
