// SPDX-License-Identifier: Apache-2.0
#include "core/stopwatch.h"

#include <array>
#include <ctime>

namespace driftless {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text{};
  ::gmtime_r(&now, &parts);
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace driftless
