// SPDX-License-Identifier: Apache-2.0
// A simulated engine with two tensor-parallel workers, and the agent that drives it.
//
// The server is one process: a queue of calls that are done one after the other, workers that hold
// half of every tensor and follow the road by a Receiver, a pause, a label, a prefix cache. The
// agent is another: the product's driver and session, over a network that loses calls and answers.
// What the workers answer is what megatron_bridge/driftless/engines/follower.py answers.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "plugin/engines/engine_session.h"
#include "sim/slice_worker.h"
#include "sim/world.h"

namespace driftless::testing {

class Engine {
 public:
  Engine(World& world, std::string name);

  // A new server, serving the weights of `base`.
  void start_server(const Weights& base);
  void start_agent();
  [[nodiscard]] Process* server() { return server_.get(); }
  [[nodiscard]] Process* agent() { return agent_.get(); }
  [[nodiscard]] bool running() const {
    return (server_ != nullptr && server_->fibers > 0) || (agent_ != nullptr && agent_->fibers > 0);
  }
  [[nodiscard]] bool agent_running() const { return agent_ != nullptr && agent_->fibers > 0; }
  // Served, by all workers, under its label.
  [[nodiscard]] bool serves(const VersionId& id) const;
  [[nodiscard]] const std::string& name() const { return name_; }

  // Whether what is served is what is claimed; empty: it is, or nothing is served.
  [[nodiscard]] std::string check() const;

 private:
  // One life of the server.
  struct Server {
    std::string token;  // random, of this process
    std::array<std::shared_ptr<SliceWorker>, 2> workers;
    bool paused = false, session = false;
    std::string label = "default";
    std::uint64_t taken = 0, done = 0;  // calls in the queue: numbers
    std::optional<Digest> cached;       // the weights that made the prefix cache; none: it is empty
  };
  struct Reply {
    bool done = false;
    Result<std::string> text = std::string();
  };

  Status run_agent(Process& process);
  Status drive(ReceiveRoad& road, const std::string& run);
  // What came of a call over the network, from the agent's side.
  Result<std::string> call(const std::string& operation, const std::string& arguments);
  Result<std::string> carry_out(Server& server, const std::string& operation,
                                const std::string& arguments);
  Result<std::string> rpc(Server& server, const std::string& arguments);
  void check_updated(const std::string& run, std::uint64_t version);
  [[nodiscard]] bool alive() const { return server_ != nullptr && !server_->dead && life_; }

  World& world_;
  const std::string name_;
  std::shared_ptr<Process> server_, agent_;
  std::shared_ptr<Server> life_;  // of server_
  std::string last_status_;       // the server that answered the agent's last question
};

}  // namespace driftless::testing
