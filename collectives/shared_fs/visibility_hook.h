// SPDX-License-Identifier: Apache-2.0
// A visibility hook: the operator's command, run through /bin/sh.
#pragma once

#include "collectives/shared_fs/shared_fs_road.h"

namespace driftless::shared_fs {

struct VisibilityHook {
  std::string name;     // of the option, for messages
  std::string command;  // for /bin/sh -c; empty: nothing to do
  std::vector<std::pair<std::string, std::string>> variables;  // added to the environment
};

// Runs the command in its own process group, without input, and waits until the shell has ended
// with status 0. kIo if it ended otherwise (the message ends with its last output to stderr);
// kDeadlineExceeded after `timeout` or the deadline, with the whole group killed. Processes that a
// successful command leaves in the background continue.
[[nodiscard]] Status run_hook(const VisibilityHook& hook, std::chrono::milliseconds timeout,
                              const Deadline& deadline);

// Runs the leader's hook, once `version_dir` has appeared.
[[nodiscard]] Status run_after_publish(const SharedFsOptions& options,
                                       const std::string& version_dir, const Deadline& deadline);

// A hook that runs before every look, except directly after its last run. One thread. Each run has
// the whole `timeout`, even in a shorter wait, which would otherwise end before the hook and find
// nothing. If the hook stalls, the result is kIo: kDeadlineExceeded would mean that there is
// nothing new.
class RepeatedHook {
 public:
  RepeatedHook(VisibilityHook hook, std::chrono::milliseconds timeout,
               std::chrono::milliseconds pause)
      : hook_(std::move(hook)), timeout_(timeout), pause_(pause) {}
  [[nodiscard]] Status run();

 private:
  const VisibilityHook hook_;
  const std::chrono::milliseconds timeout_, pause_;
  std::optional<Deadline::Clock::time_point> ended_;
};
// The receiver's hook.
[[nodiscard]] RepeatedHook before_read_hook(const SharedFsOptions& options);

}  // namespace driftless::shared_fs
