// SPDX-License-Identifier: Apache-2.0
#include "sim/engine.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace driftless::testing {

using std::chrono::milliseconds;

void Engine::start_server(const Weights& base) {
  if (server_ != nullptr) world_.simulation.kill(*server_);
  auto life = std::make_shared<Server>();
  life->token = to_hex(world_.simulation.random());
  life_ = life;
  queue_ = std::make_shared<CallQueue>();
  server_ = world_.simulation.start(concat(name_, "-server"), [this, life](Process& process) {
    while (!process.dead && !world_.ending) world_.simulation.sleep(milliseconds(500));
    world_.simulation.kill(process);  // with all its threads
  });
  for (unsigned rank = 0; rank < life->workers.size(); ++rank) {
    life->workers[rank] =
        std::make_shared<SliceWorker>(world_, server_, concat(name_, "-rank", rank), rank, base);
  }
}

// --- what the server does ----------------------------------------------------------------------

Result<std::string> Engine::carry_out(Server& server, const std::string& operation,
                                      const std::string& arguments) {
  if (operation == "rpc") return rpc(server, arguments);
  const auto given = nlohmann::json::parse(arguments);
  const auto refused = [&](std::string_view why) {
    return error(StatusCode::kIo, name_, ": ", operation, ": ", why);
  };
  if (operation == "pause") server.paused = true;
  if (operation == "resume") server.paused = false;
  if (operation == "begin") server.session = true;  // ends a session that was left open
  if (operation == "write") {
    if (!server.session) return refused("no update is active");
    for (const auto& worker : server.workers)
      worker->commit(given.at("version"), given.at("ticket"));
  }
  if (operation == "finish") {
    if (!server.session) return refused("no update is active");
    server.session = false;
  }
  if ((operation == "finish" || operation == "set_label") && given.contains("label")) {
    server.label = given.at("label");
  }
  if (operation == "read_label") return nlohmann::json(server.label).dump();
  if (operation == "clear_cache") server.cached.reset();
  // Serving fills the prefix cache.
  if (!server.paused && !server.cached) server.cached = server.workers[0]->fingerprint();
  return std::string("{}");
}

Result<std::string> Engine::rpc(Server& server, const std::string& arguments) {
  const auto given = nlohmann::json::parse(arguments);
  nlohmann::json replies = nlohmann::json::array();
  for (std::size_t rank = 0; rank < server.workers.size(); ++rank) {
    nlohmann::json reply = server.workers[rank]->answer(given.at("method"), given.at("kwargs"));
    reply["nonce"] = given.at("kwargs").at("nonce");
    reply["process"] = concat(server.token, "-", rank);
    reply["updating"] = server.session;
    replies.push_back(std::move(reply));
  }
  return replies.dump();
}

Result<std::string> Engine::call(const std::string& operation, const std::string& arguments) {
  const std::shared_ptr<Server> life = life_;
  const std::shared_ptr<Process> server = server_;
  const Result<std::string> answer =
      call_server(world_, server, queue_, concat(name_, ": ", operation), kCallTimeout,
                  [this, life, server, operation, arguments] {
                    if (operation != "rpc") {
                      world_.simulation.trace(concat(server->name, " ", operation, " ", arguments));
                    }
                    return carry_out(*life, operation, arguments);
                  });
  if (answer.ok() && operation == "rpc") last_status_ = life->token;
  return answer;
}

// --- what must hold ----------------------------------------------------------------------------

std::string Engine::check_updated(const std::string& run, std::uint64_t version) const {
  if (!alive() || life_->token != last_status_) return {};
  const std::string claim = concat(name_, ": the agent says version ", version);
  for (const auto& worker : life_->workers) {
    const SliceWorker::Claim held = worker->claim();
    if (held.run == run && held.version == static_cast<std::int64_t>(version)) continue;
    return concat(claim, " of run ", run.substr(0, 6), ", but a worker holds version ",
                  held.version, " of run ", held.run.substr(0, 6));
  }
  if (life_->paused) return concat(claim, ", but it is paused");
  if (life_->cached && *life_->cached != life_->workers[0]->fingerprint()) {
    return concat(claim, ", but it serves from a prefix cache that other weights made");
  }
  return {};
}

std::string Engine::check() const {
  if (!alive() || life_->paused) return {};
  const SliceWorker::Claim first = life_->workers[0]->claim();
  for (const auto& worker : life_->workers) {
    const SliceWorker::Claim held = worker->claim();
    if (held.version < 0) return concat(name_, " serves parts of two versions");
    if (!worker->holds_its_claim()) {
      return concat(name_, " serves version ", held.version, " of run ", held.run.substr(0, 6),
                    " and holds other weights");
    }
    const bool differ = held.run != first.run || held.version != first.version ||
                        (held.digest != first.digest && !held.digest.empty() &&
                         !first.digest.empty());  // one that is not open yet has none
    if (differ) {
      return concat(name_, " serves version ", first.version, " on a rank and version ",
                    held.version, " on another");
    }
  }
  // A base is served under the label that the server began with.
  const std::string label = first.run.empty() ? "default" : std::to_string(first.version);
  if (life_->label == label) return {};
  return concat(name_, " serves version ", first.version, " under the label ", life_->label);
}

bool Engine::serves(const VersionId& id) const {
  if (!alive() || life_->paused || life_->label != std::to_string(id.version)) return false;
  return std::ranges::all_of(life_->workers, [&](const auto& worker) {
    const SliceWorker::Claim held = worker->claim();
    return held.run == to_hex(id.run) && held.version == static_cast<std::int64_t>(id.version);
  });
}

}  // namespace driftless::testing
