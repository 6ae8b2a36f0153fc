// SPDX-License-Identifier: Apache-2.0
// A visibility hook: a command of the operator's, run through /bin/sh.
#pragma once

#include "collectives/road.h"

namespace driftless::shared_fs {

struct VisibilityHook {
  std::string name;     // of the option, for messages
  std::string command;  // for /bin/sh -c; empty: nothing to do
  std::vector<std::pair<std::string, std::string>> variables;  // added to the environment
};

// Runs it in a process group of its own, without input, and waits until the shell has ended with
// status 0. kIo where it ended otherwise (the message ends with what it last wrote to stderr);
// kDeadlineExceeded after `timeout` or the deadline, with the whole group killed. A process that a
// successful command leaves in the background is left alone.
[[nodiscard]] Status run_hook(const VisibilityHook& hook, std::chrono::milliseconds timeout,
                              const Deadline& deadline);

}  // namespace driftless::shared_fs
