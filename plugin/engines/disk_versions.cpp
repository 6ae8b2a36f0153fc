#include <thread>

#include "plugin/engines/engine_session.h"

namespace driftless {

Result<std::shared_lock<std::shared_timed_mutex>> DiskVersions::reading(const EngineLink& link) {
  using std::chrono_literals::operator""ms;
  std::shared_lock held(lock, std::defer_lock);
  while (writer_waits || !held.try_lock_for(10ms)) {
    if (link.stopping()) return error(StatusCode::kIncomplete, link.url(), ": stopped");
    std::this_thread::sleep_for(2ms);
  }
  return held;
}

}  // namespace driftless
