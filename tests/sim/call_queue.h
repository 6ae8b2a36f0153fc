// SPDX-License-Identifier: Apache-2.0
// A simulated server's queue of calls, and the network before it: calls and answers are lost, some
// take long. What has come is done in the order in which it came, whether its caller waits or not.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "sim/world.h"

namespace driftless::testing {

// Of one life of a server.
struct CallQueue {
  std::uint64_t taken = 0, done = 0;  // calls, by number
};

// Called by another process. `work` is done by the server's; what came of it, or kIo.
Result<std::string> call_server(World& world, const std::shared_ptr<Process>& server,
                                const std::shared_ptr<CallQueue>& queue, const std::string& what,
                                std::chrono::milliseconds timeout,
                                std::function<Result<std::string>()> work);

}  // namespace driftless::testing
