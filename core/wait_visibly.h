// SPDX-License-Identifier: Apache-2.0
// A visible wait on a condition variable (core/waiting.h).
#pragma once

#include <condition_variable>
#include <mutex>

#include "core/deadline.h"
#include "core/waiting.h"

namespace driftless {

// Waits until there() returns true, and checks it every second. False: the deadline is over.
template <typename There, typename Whom>
[[nodiscard]] bool wait_visibly(Waiting& waiting, std::condition_variable& changed,
                                std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                                const There& there, const Whom& whom) {
  constexpr std::chrono::milliseconds kLook(1'000);
  while (!wait_until(changed, lock, deadline.sooner(kLook).at(), there)) {
    if (deadline.expired()) return there();
    waiting.look(whom);
  }
  return true;
}

}  // namespace driftless
