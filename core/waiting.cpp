// SPDX-License-Identifier: Apache-2.0
#include "core/waiting.h"

#include "core/status.h"

namespace driftless {

void Waiting::restart() { *this = Waiting(); }

bool Waiting::due() {
  const Environment::TimePoint now = environment().now();
  if (now - looked_ > kEvery) restart();
  looked_ = now;
  if (now < next_) return false;
  next_ = now + kEvery;
  return true;
}

void Waiting::log(const std::string& whom) const {
  const auto waited = std::chrono::round<std::chrono::seconds>(looked_ - since_);
  environment().log(concat("still waiting after ", waited.count(), " s: ", whom));
}

}  // namespace driftless
