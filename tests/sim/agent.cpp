// SPDX-License-Identifier: Apache-2.0
#include "sim/agent.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "plugin/receive/receiver.h"
#include "sim/step_road.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{300};
constexpr milliseconds kStageTimeout{4'000};
// The limit of one step of the relay: it fetches an anchor or a version, and reads the receivers'
// reports and lists of the road.
constexpr milliseconds kRelayLimit = kLook + 2 * kFetchDeadline + 4 * kReportDeadline;
// The limit of one try of an update: staging, with the driver's grace time, and calls that get no
// reply.
constexpr milliseconds kUpdateLimit = 5 * kStageTimeout + milliseconds(30'000) + 80 * kCallTimeout;

// Failures after which the product's agent tries again.
bool may_pass(StatusCode code) {
  return code != StatusCode::kWrongRun && code != StatusCode::kWrongLayout &&
         code != StatusCode::kInvalidArgument && code != StatusCode::kUnsupported;
}

// A session that checks the engine after every update.
class CheckedSession final : public EngineSession {
 public:
  CheckedSession(World& world, Engine& engine, std::string run,
                 std::unique_ptr<EngineSession> session)
      : world_(world), engine_(engine), run_(std::move(run)), session_(std::move(session)) {}

  Result<std::uint64_t> update(std::uint64_t goal, CommitTimes& times) override {
    Result<std::uint64_t> done = error(StatusCode::kInternal, "not called");
    world_.simulation.within(kUpdateLimit, "an update",
                             [&] { done = session_->update(goal, times); });
    world_.simulation.trace(
        concat(engine_.name(), " update to ", goal, ": ",
               done.ok() ? concat("version ", *done) : done.status().to_string()));
    if (!done.ok() || world_.simulation.self().dead) return done;
    ++world_.commits;
    const std::string wrong = engine_.check_updated(run_, *done);
    if (!wrong.empty()) world_.simulation.fail(wrong);
    return done;
  }
  Status check(std::uint64_t version) override { return session_->check(version); }
  Status close() override { return session_->close(); }

 private:
  World& world_;
  Engine& engine_;
  const std::string run_;
  std::unique_ptr<EngineSession> session_;
};

}  // namespace

void Agent::start() {
  process_ = world_.simulation.start("agent", [this](Process& process) {
    const Status ended = run(process);
    world_.simulation.trace(concat("agent ends: ", ended.to_string()));
  });
  // The shared memory of a process that dies stays: without its lock the process removes nothing.
  process_->when_dead = [this] {
    const std::string road = concat("driftless-", ::geteuid(), "-", world_.host_shm.name);
    std::error_code ignored;
    std::filesystem::remove(concat(world_.host_shm.dir, "/", road, "/lock"), ignored);
  };
}

std::unique_ptr<EngineSession> Agent::session(Engine& engine, const std::string& run,
                                              const std::shared_ptr<VersionDigests>& digests) {
  EngineSessionOptions options{run, "agent", kStageTimeout, digests};
  auto transport = make_in_process_transport(
      [&engine](const std::string& operation, const std::string& arguments) {
        return engine.call(operation, arguments);
      });
  return std::make_unique<CheckedSession>(
      world_, engine, run, make_engine_session(std::move(transport), std::move(options)));
}

Status Agent::run(Process& process) {
  SimFileSystem fs(world_.simulation, world_.disk, process);
  std::unique_ptr<ReceiveRoad> road;
  if (world_.hub != nullptr) {
    road = world_.hub->receiver();
  } else {
    DRIFTLESS_ASSIGN_OR_RETURN(road, make_shared_fs_receiver(fs, world_.shared_fs));
  }
  StepReceiveRoad up(world_.simulation, std::move(road), world_.receive_fault_rate);
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<SendRoad> sender,
                             make_host_shm_sender(world_.host_shm));
  StepSendRoad down(world_.simulation, std::move(sender));
  RelayOptions options;
  options.read_workers = 1;
  options.versions = world_.host_shm.versions;
  options.fetch_deadline = kFetchDeadline;
  options.report_deadline = kReportDeadline;
  Result<std::unique_ptr<Relay>> relay = error(StatusCode::kInternal, "not called");
  world_.simulation.within(kConnectDeadline, "opening the relay", [&] {
    relay = Relay::open(options, up, down, Deadline::after(kConnectDeadline));
  });
  DRIFTLESS_RETURN_IF_ERROR(relay.status());
  const std::shared_ptr<VersionDigests> digests = (*relay)->digests();
  std::vector<std::string> names;
  std::vector<std::unique_ptr<EngineSession>> sessions;
  for (Engine* engine : engines_) {
    names.push_back(engine->name());
    sessions.push_back(session(*engine, to_hex((*relay)->run()), digests));
  }
  EngineFleet fleet({.retries = 1, .retry_wait = milliseconds(500)}, std::move(names));
  fleet.start(std::move(sessions));
  const Status followed = follow(**relay, fleet, up);
  fleet.stop();
  return followed;
}

Status Agent::follow(Relay& relay, EngineFleet& fleet, ReceiveRoad& road) {
  Deadline alive = Deadline::after(milliseconds(0));
  while (!world_.ending) {
    DRIFTLESS_RETURN_IF_ERROR(world_.simulation.step());
    const Result<bool> delivered = deliver(relay);
    DRIFTLESS_RETURN_IF_ERROR(delivered.status());
    if (*delivered) fleet.set_goal(relay.version());
    const bool taken = !fleet.take_updates().empty();
    if (!*delivered && !taken && !alive.expired()) continue;
    report(relay, fleet, road);
    alive = Deadline::after(milliseconds(1'000));
  }
  return road.leave(Deadline::after(kReportDeadline));
}

Result<bool> Agent::deliver(Relay& relay) {
  Result<std::optional<DeliveryReport>> taken = std::optional<DeliveryReport>();
  world_.simulation.within(kRelayLimit, "the relay", [&] {
    taken = relay.help();
    if (taken.ok() && !*taken) taken = relay.follow(Deadline::after(kLook));
  });
  if (!taken.ok()) {
    world_.simulation.trace(concat("agent: ", taken.status().to_string()));
    if (!may_pass(taken.status().code())) return taken.status();
    world_.simulation.sleep(milliseconds(500));
    return false;
  }
  return taken->has_value();
}

// Reports the version that every engine has.
void Agent::report(const Relay& relay, const EngineFleet& fleet, ReceiveRoad& road) {
  ReceiverReport report;
  report.id = "agent";
  std::uint64_t least = relay.version();
  for (const EngineRecord& engine : fleet.states()) least = std::min(least, engine.version);
  if (const auto digest = relay.digests()->find(least)) {
    report.version = least;
    report.proof = to_hex(*digest);
  }
  if (relay.wants_anchor()) {
    report.version = relay.version();
    report.proof = kAnchorWanted;
  }
  const Status ignored = road.report(report, Deadline::after(kReportDeadline));
}

}  // namespace driftless::testing
