// SPDX-License-Identifier: Apache-2.0
// A simulated server's queue of calls, and the network in front of it, which loses some calls and
// replies and delays others. The server does calls in the order of their arrival, even if the
// caller no longer waits.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "sim/world.h"

namespace driftless::testing {

// The calls during one life of a server.
struct CallQueue {
  std::uint64_t taken = 0, done = 0;  // calls, by number
};

// Called by another process. The server's process runs `work`. Returns the result, or kIo.
Result<std::string> call_server(World& world, const std::shared_ptr<Process>& server,
                                const std::shared_ptr<CallQueue>& queue, const std::string& what,
                                std::chrono::milliseconds timeout,
                                std::function<Result<std::string>()> work);

}  // namespace driftless::testing
