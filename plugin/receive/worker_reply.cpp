// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/worker_reply.h"

#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

namespace driftless {

std::string_view to_string(WorkerState state) {
  constexpr std::array<std::string_view, 6> kNames = {"closed", "idle",      "staging",
                                                      "staged", "committed", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string worker_process() {
  static const std::string token = to_hex(random_hash128()).substr(0, 16);
  return concat(token, "-", ::getpid());
}

std::string reply_json(const WorkerReply& reply, const Json& beside) {
  Json json = {{"nonce", reply.nonce},
               {"rank", reply.rank},
               {"process", worker_process()},
               {"ok", !reply.error},
               {"error", reply.error ? Json(*reply.error) : Json()},
               {"state", to_string(reply.state)},
               {"version", reply.version},
               {"staged_version", reply.staged_version ? Json(*reply.staged_version) : Json()},
               {"run", reply.run},
               {"digest", reply.digest},
               {"follows", reply.follows},
               {"waits", reply.waits},
               {"ways", reply.ways},
               {"timings", reply.timings},
               {"moved", reply.moved}};
  json.update(beside);
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string reply_json(const WorkerReply& reply) { return reply_json(reply, Json::object()); }

}  // namespace driftless
