// SPDX-License-Identifier: Apache-2.0
#include "collectives/present_announcement.h"

namespace driftless {

using std::chrono::milliseconds;

Result<std::optional<std::string>> present_announcement(ReceiveRoad& history,
                                                        const Deadline& deadline) {
  constexpr milliseconds kAtOnce{1'000};
  Backoff backoff(milliseconds(100), milliseconds(2'000));
  Waiting waiting;
  for (;;) {
    const Deadline at_once = Deadline::after(kAtOnce);
    Result<std::string> found = history.run_info(Deadline::after(milliseconds(0)));
    if (found.ok()) return std::optional(std::move(*found));
    const StatusCode code = found.status().code();
    if (code == StatusCode::kNotFound || code == StatusCode::kDeadlineExceeded) {
      return std::optional<std::string>();
    }
    if (code != StatusCode::kIo || !at_once.expired()) return found.status();
    if (!waiting.sleep(backoff, deadline, [&] { return std::string(found.status().message()); })) {
      return found.status();
    }
  }
}

}  // namespace driftless
