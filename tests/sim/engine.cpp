// SPDX-License-Identifier: Apache-2.0
#include "sim/engine.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/manifest.h"
#include "formats/run_info.h"
#include "sim/step_road.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kCallTimeout{5'000};
constexpr milliseconds kStageTimeout{4'000};

}  // namespace

Engine::Engine(World& world, std::string name) : world_(world), name_(std::move(name)) {}

void Engine::start_server(const Weights& base) {
  if (server_ != nullptr) world_.simulation.kill(*server_);
  auto life = std::make_shared<Server>();
  life->token = to_hex(world_.simulation.random());
  life_ = life;
  server_ = world_.simulation.start(concat(name_, "-server"), [this, life](Process& process) {
    while (!process.dead && !world_.ending) world_.simulation.sleep(milliseconds(500));
    world_.simulation.kill(process);  // with all its threads
  });
  for (unsigned rank = 0; rank < life->workers.size(); ++rank) {
    life->workers[rank] =
        std::make_shared<SliceWorker>(world_, server_, concat(name_, "-rank", rank), rank, base);
  }
}

// --- what the server does
// -------------------------------------------------------------------------

Result<std::string> Engine::carry_out(Server& server, const std::string& operation,
                                      const std::string& arguments) {
  if (operation == "rpc") return rpc(server, arguments);
  const auto given = nlohmann::json::parse(arguments);
  const auto refused = [&](std::string_view why) {
    return error(StatusCode::kIo, name_, ": ", operation, ": ", why);
  };
  if (operation == "pause") server.paused = true;
  if (operation == "resume") server.paused = false;
  if (operation == "begin") {
    if (server.session) return refused("an update is active");
    server.session = true;
  }
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
  // Who serves fills the cache.
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
    replies.push_back(std::move(reply));
  }
  return replies.dump();
}

// --- the network
// ----------------------------------------------------------------------------------

Result<std::string> Engine::call(const std::string& operation, const std::string& arguments) {
  Simulation& simulation = world_.simulation;
  Random& random = world_.random;
  DRIFTLESS_RETURN_IF_ERROR(simulation.step());
  const auto lost = [&](std::string_view why) {
    return error(StatusCode::kIo, name_, ": ", operation, ": ", why);
  };
  if (!alive()) return lost("connection refused");
  const double rate = world_.calm ? 0 : world_.call_fault_rate;
  if (random.chance(rate)) return lost("the call was lost");
  const bool answer_lost = random.chance(rate);
  const auto slow = random.chance(rate) ? random.between(milliseconds(1), milliseconds(20'000))
                                        : std::chrono::microseconds(0);
  const auto reply = std::make_shared<Reply>();
  const std::shared_ptr<Server> life = life_;
  const std::shared_ptr<Process> server = server_;
  // One after the other, in the order in which they came, whether the caller waits or not.
  const std::uint64_t turn = life->taken++;
  simulation.start_fiber(server, [this, reply, life, server, turn, slow, operation, arguments] {
    for (milliseconds poll(1); !server->dead && life->done != turn;) {
      world_.simulation.sleep(poll);
      poll = std::min(2 * poll, milliseconds(200));
    }
    if (slow.count() > 0) world_.simulation.sleep(slow);
    if (!server->dead) reply->text = carry_out(*life, operation, arguments);
    if (operation != "rpc") {
      world_.simulation.trace(concat(server->name, " ", operation, " ", arguments));
    }
    ++life->done;
    reply->done = !server->dead;
  });
  const Deadline deadline = Deadline::after(kCallTimeout);
  Backoff backoff(std::chrono::microseconds(100), milliseconds(100));
  while (!reply->done && !server->dead) {
    if (!backoff.sleep(deadline)) return lost("no answer in time");
  }
  if (!reply->done) return lost("the connection was reset");
  if (answer_lost) return lost("the answer was lost");
  if (operation == "rpc") last_status_ = life->token;
  return reply->text;
}

// --- the agent
// ------------------------------------------------------------------------------------

void Engine::start_agent() {
  agent_ = world_.simulation.start(concat(name_, "-agent"), [this](Process& process) {
    const Status ended = run_agent(process);
    world_.simulation.trace(concat(process.name, " ends: ", ended.to_string()));
  });
}

Status Engine::run_agent(Process& process) {
  SimFileSystem fs(world_.simulation, world_.disk, process);
  std::unique_ptr<ReceiveRoad> road;
  if (world_.hub != nullptr) {
    road = world_.hub->receiver();
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(road, make_shared_fs_receiver(fs, world_.shared_fs));
  }
  StepReceiveRoad steps(world_.simulation, std::move(road), world_.receive_fault_rate);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string text,
                             steps.run_info(Deadline::after(kConnectDeadline)));
  DRIFTLESS_ASSIGN_OR_RETURN(const RunInfo run, parse_run_info(text, "the announcement"));
  return drive(steps, to_hex(run.run));
}

// Follows the road as an agent does: the engine is to hold the newest version of this run.
Status Engine::drive(ReceiveRoad& road, const std::string& run) {
  Simulation& simulation = world_.simulation;
  const auto digests = std::make_shared<VersionDigests>();
  EngineSessionOptions options;
  options.run = run;
  options.source = "agent";
  options.stage = kStageTimeout;
  options.digests = digests;
  const auto session = make_engine_session(
      make_in_process_transport([this](const std::string& operation, const std::string& arguments) {
        return call(operation, arguments);
      }),
      options);
  std::uint64_t newest = 0, reached = 0;
  while (!world_.ending) {
    DRIFTLESS_RETURN_IF_ERROR(simulation.step());
    const auto ids = road.list(Deadline::after(kFetchDeadline));
    for (const PublicationId& id : ids.ok() ? *ids : std::vector<PublicationId>()) {
      if (id.kind != PublicationKind::kStep || digests->find(id.version)) continue;
      const auto text = road.fetch_manifest(id, Deadline::after(kFetchDeadline));
      if (!text.ok()) continue;
      const auto manifest = parse_manifest(*text, "a manifest");
      if (!manifest.ok()) continue;
      if (to_hex(manifest->id.run) != run) return error(StatusCode::kWrongRun, "another run");
      digests->note(id.version, manifest->digest);
      newest = std::max(newest, id.version);
    }
    if (newest > reached) {
      EngineTimes times;
      const Result<std::uint64_t> done = session->update(newest, times);
      simulation.trace(concat(name_, " update to ", newest, ": ",
                              done.ok() ? concat("version ", *done) : done.status().to_string()));
      if (done.ok()) {
        reached = *done;
        ++world_.commits;
        check_updated(run, *done);
      }
    }
    simulation.sleep(milliseconds(300));
  }
  return session->close();
}

// --- what must hold
// -------------------------------------------------------------------------------

// An update that is said to have gone well has, in the server that said so.
void Engine::check_updated(const std::string& run, std::uint64_t version) {
  if (!alive() || life_->token != last_status_ || agent_->dead) return;
  for (const auto& worker : life_->workers) {
    const SliceWorker::Claim held = worker->claim();
    if (held.run == run && held.version == static_cast<std::int64_t>(version)) continue;
    world_.simulation.fail(concat(name_, ": the agent says version ", version, " of run ",
                                  run.substr(0, 6), ", but a worker holds version ", held.version,
                                  " of run ", held.run.substr(0, 6)));
  }
  if (life_->paused) {
    world_.simulation.fail(
        concat(name_, ": the agent says version ", version, ", but it is paused"));
  }
  if (life_->label != std::to_string(version)) {
    world_.simulation.fail(concat(name_, " serves version ", version, " labelled ", life_->label));
  }
  if (life_->cached && *life_->cached != life_->workers[0]->fingerprint()) {
    world_.simulation.fail(concat(name_, " serves from a prefix cache that other weights made"));
  }
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
  return {};
}

bool Engine::serves(const VersionId& id) const {
  if (!alive() || life_->paused || life_->label != std::to_string(id.version)) return false;
  return std::ranges::all_of(life_->workers, [&](const auto& worker) {
    const SliceWorker::Claim held = worker->claim();
    return held.run == to_hex(id.run) && held.version == static_cast<std::int64_t>(id.version);
  });
}

}  // namespace driftless::testing
