// SPDX-License-Identifier: Apache-2.0
// Fiber: a function that runs on a stack of its own, and that can be left and entered again at
// points that it chooses. All fibers of a simulation take turns on one thread.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace driftless::testing {

class Fiber {
 public:
  explicit Fiber(std::function<void()> body);
  // The body must have ended.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Called from outside: continues the body until it calls leave() or ends.
  void enter();
  // Called by the body.
  void leave();
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  static void run(unsigned high, unsigned low);
  void about_to_switch(bool to_fiber);
  void has_switched(bool to_fiber);

  std::function<void()> body_;
  std::byte* stack_ = nullptr;
  ucontext_t outside_{}, inside_{};
  bool ended_ = false;
  // State for the sanitizers.
  void* outside_fake_ = nullptr;
  void* inside_fake_ = nullptr;
  const void* outside_stack_ = nullptr;
  std::size_t outside_bytes_ = 0;
  void* tsan_inside_ = nullptr;
  void* tsan_outside_ = nullptr;
};

}  // namespace driftless::testing
