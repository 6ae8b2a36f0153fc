// SPDX-License-Identifier: Apache-2.0
// BackgroundWriter: does one piece of work at a time on a thread of its own, while the caller makes
// the next one ready.
//
// One thread at a time calls it. The work and what it uses outlive the writer, whose destructor
// waits for what was begun.
#pragma once

#include <functional>
#include <future>

#include "core/status.h"

namespace driftless {

class BackgroundWriter {
 public:
  using Work = std::function<Status()>;

  // Without a background every piece of work is done within the call that brings it.
  explicit BackgroundWriter(bool background);

  [[nodiscard]] bool background() const { return background_; }
  // Waits until the work before has been done, and begins this. After a failure nothing more is
  // begun, and every call returns it.
  [[nodiscard]] Status hand_over(Work work);
  // Waits until everything has been done. How it went.
  [[nodiscard]] Status finish();

 private:
  bool background_;
  Status status_;              // of what was done
  std::future<Status> begun_;  // its destructor waits for the work
};

}  // namespace driftless
