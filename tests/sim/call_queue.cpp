// SPDX-License-Identifier: Apache-2.0
#include "sim/call_queue.h"

#include <algorithm>
#include <utility>

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;

struct Reply {
  bool done = false;
  Result<std::string> text = std::string();
};

void take_turn(World& world, const Process& server, const CallQueue& queue, std::uint64_t turn) {
  for (milliseconds poll(1); !server.dead && queue.done != turn;) {
    world.simulation.sleep(poll);
    poll = std::min(2 * poll, milliseconds(200));
  }
}

}  // namespace

Result<std::string> call_server(World& world, const std::shared_ptr<Process>& server,
                                const std::shared_ptr<CallQueue>& queue, const std::string& what,
                                milliseconds timeout, std::function<Result<std::string>()> work) {
  Random& random = world.random;
  DRIFTLESS_RETURN_IF_ERROR(world.simulation.step());
  const auto lost = [&](std::string_view why) { return error(StatusCode::kIo, what, ": ", why); };
  if (server == nullptr || server->dead) return lost("connection refused");
  const double rate = world.calm ? 0 : world.call_fault_rate;
  if (random.chance(rate)) return lost("the call was lost");
  const bool answer_lost = random.chance(rate);
  const auto slow = random.chance(rate) ? random.between(milliseconds(1), milliseconds(20'000))
                                        : std::chrono::microseconds(0);
  const auto reply = std::make_shared<Reply>();
  const std::uint64_t turn = queue->taken++;
  world.simulation.start_fiber(server,
                               [&world, server, queue, turn, slow, reply, work = std::move(work)] {
                                 take_turn(world, *server, *queue, turn);
                                 if (slow.count() > 0) world.simulation.sleep(slow);
                                 if (!server->dead) reply->text = work();
                                 ++queue->done;
                                 reply->done = !server->dead;
                               });
  const Deadline deadline = Deadline::after(timeout);
  Backoff backoff(std::chrono::microseconds(100), milliseconds(100));
  while (!reply->done && !server->dead) {
    if (!backoff.sleep(deadline)) return lost("no answer in time");
  }
  if (!reply->done) return lost("the connection was reset");
  if (answer_lost) return lost("the answer was lost");
  return reply->text;
}

}  // namespace driftless::testing
