// SPDX-License-Identifier: Apache-2.0
#include "core/deadline.h"

#include <algorithm>

namespace driftless {

Deadline Deadline::after(std::chrono::milliseconds wait) {
  const Clock::time_point now = Clock::now();
  // A wait beyond what the clock can count is as long as one can be.
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(
      Clock::time_point::max() - now - std::chrono::hours(1));
  return {now, now + std::min(wait, most)};
}

Deadline Deadline::sooner(std::chrono::milliseconds wait) const {
  const Deadline other = after(wait);
  return other.at_ < at_ ? other : *this;
}

std::chrono::milliseconds Deadline::remaining() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

Status Deadline::check(std::string_view what) const {
  if (!expired()) return {};
  const auto waited = std::chrono::round<std::chrono::milliseconds>(at_ - begin_).count();
  return error(StatusCode::kDeadlineExceeded, what, ": gave up after ", waited, " ms");
}

bool Backoff::sleep(const Deadline& deadline) {
  Environment& here = environment();
  const auto now = here.now();
  if (now >= deadline.at()) return false;
  here.sleep_until(std::min(now + next_, deadline.at()));
  next_ = std::min(next_ * 2, longest_);
  return true;
}

}  // namespace driftless
