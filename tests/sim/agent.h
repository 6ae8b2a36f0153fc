// SPDX-License-Identifier: Apache-2.0
// The agent of a simulated host, which works as `driftless agent` does: it takes publications from
// the road, offers them to the engines' workers in shared memory (Relay, host_shm), and brings its
// engines to each version (EngineFleet, EngineSession, EngineDriver).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugin/agent/relay.h"
#include "plugin/engines/engine_fleet.h"
#include "sim/engine.h"
#include "sim/world.h"

namespace driftless::testing {

class Agent {
 public:
  // The engines outlive the agent.
  Agent(World& world, std::vector<Engine*> engines) : world_(world), engines_(std::move(engines)) {}

  // Not allowed while an agent runs.
  void start();
  [[nodiscard]] Process* process() { return process_.get(); }
  [[nodiscard]] bool running() const { return process_ != nullptr && process_->fibers > 0; }

 private:
  Status run(Process& process);
  Status follow(Relay& relay, EngineFleet& fleet, ReceiveRoad& road);
  Result<bool> deliver(Relay& relay);
  void report(const Relay& relay, const EngineFleet& fleet, ReceiveRoad& road);
  [[nodiscard]] std::unique_ptr<EngineSession> session(
      Engine& engine, const std::string& run, const std::shared_ptr<VersionDigests>& digests);

  World& world_;
  const std::vector<Engine*> engines_;
  std::shared_ptr<Process> process_;
};

}  // namespace driftless::testing
