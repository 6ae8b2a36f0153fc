// SPDX-License-Identifier: Apache-2.0
#include "core/deadline.h"

#include <algorithm>

namespace driftless {

Deadline Deadline::after(std::chrono::milliseconds wait) {
  const Clock::time_point now = Clock::now();
  // A wait that the clock cannot represent becomes the longest one that it can.
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(
      Clock::time_point::max() - now - std::chrono::hours(1));
  return {now, now + std::min(wait, most)};
}

Deadline Deadline::sooner(std::chrono::milliseconds wait) const {
  Deadline other = after(wait);
  other.stopped_ = stopped_;
  return other.at_ < at_ ? other : *this;
}

Deadline Deadline::unless(bool (*is_stopped)()) const {
  Deadline other = *this;
  other.stopped_ = is_stopped;
  return other;
}

std::chrono::milliseconds Deadline::remaining() const {
  if (stopped()) return std::chrono::milliseconds(0);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

Status Deadline::check(std::string_view what) const {
  if (!expired()) return {};
  if (stopped()) return error(StatusCode::kDeadlineExceeded, what, ": stopped");
  const auto waited = std::chrono::round<std::chrono::milliseconds>(at_ - begin_).count();
  return error(StatusCode::kDeadlineExceeded, what, ": gave up after ", waited, " ms");
}

bool Backoff::sleep(const Deadline& deadline) {
  constexpr std::chrono::milliseconds kSlice(200);  // until a stop is noticed
  Environment& here = environment();
  auto now = here.now();
  if (now >= deadline.at() || deadline.stopped()) return false;
  const auto until = std::min(now + next_, deadline.at());
  do {
    here.sleep_until(deadline.can_stop() ? std::min(now + kSlice, until) : until);
    now = here.now();
  } while (deadline.can_stop() && now < until && !deadline.stopped());
  next_ = std::min(next_ * 2, longest_);
  return true;
}

}  // namespace driftless
