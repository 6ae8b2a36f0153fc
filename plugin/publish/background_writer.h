// SPDX-License-Identifier: Apache-2.0
// BackgroundWriter: does one piece of work at a time on a thread of its own, while the caller makes
// the next one ready.
//
// One thread at a time calls it. The work and what it uses outlive the writer, whose destructor
// waits for what was begun.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/status.h"

namespace driftless {

class BackgroundWriter {
 public:
  using Work = std::function<Status()>;

  // Without a background every piece of work is done within the call that brings it.
  explicit BackgroundWriter(bool background);
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  [[nodiscard]] bool background() const { return thread_.joinable(); }
  // Waits until the work before has been done, and begins this. After a failure nothing more is
  // begun, and every call returns it.
  [[nodiscard]] Status hand_over(Work work);
  // How it went so far.
  [[nodiscard]] Status status();
  // Waits until everything has been done. Nothing can be handed over afterwards.
  [[nodiscard]] Status finish();

 private:
  void run();
  void stop();

  std::mutex mutex_;  // for what follows
  std::condition_variable changed_;
  Work work_;  // empty: nothing to do
  bool stopping_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace driftless
