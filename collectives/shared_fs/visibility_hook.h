// SPDX-License-Identifier: Apache-2.0
// A visibility hook: a command of the operator's, run through /bin/sh.
#pragma once

#include "collectives/shared_fs/shared_fs_road.h"

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

// A leader's, once `version_dir` has appeared.
[[nodiscard]] Status run_after_publish(const SharedFsOptions& options,
                                       const std::string& version_dir, const Deadline& deadline);

// One that is run again and again, before every look, but not if it has just been run. It has
// `timeout` for itself: a wait that is shorter than the hook would never see anything. One that
// stalls is kIo, since a deadline that passed means that nothing new is there. One thread.
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
// A receiver's.
[[nodiscard]] RepeatedHook before_read_hook(const SharedFsOptions& options);

}  // namespace driftless::shared_fs
