// SPDX-License-Identifier: Apache-2.0
// A simulated engine with two tensor-parallel workers: one process with a queue of calls, workers
// that hold half of every tensor and follow the agent's road by a Receiver, a pause, a label, a
// prefix cache. What the workers answer is what megatron_bridge/driftless/engines answers.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "sim/call_queue.h"
#include "sim/slice_worker.h"
#include "sim/world.h"

namespace driftless::testing {

inline constexpr std::chrono::milliseconds kCallTimeout{5'000};

class Engine {
 public:
  Engine(World& world, std::string name) : world_(world), name_(std::move(name)) {}

  // Starts a new server with the weights of `base`, and ends the one before.
  void start_server(const Weights& base);
  [[nodiscard]] Process* server() { return server_.get(); }
  [[nodiscard]] bool running() const { return server_ != nullptr && server_->fibers > 0; }
  [[nodiscard]] const std::string& name() const { return name_; }

  // The result of a call over the network, as in_process_transport.cpp makes it. Called by another
  // process.
  [[nodiscard]] Result<std::string> call(const std::string& operation,
                                         const std::string& arguments);

  // Whether all workers serve this version, under its label.
  [[nodiscard]] bool serves(const VersionId& id) const;
  // Compares the served weights with the claims of the workers and with the label. Empty: they
  // agree, or nothing is served.
  [[nodiscard]] std::string check() const;
  // Checks an update that was reported as successful, in the server that reported it.
  [[nodiscard]] std::string check_updated(const std::string& run, std::uint64_t version) const;

 private:
  // One life of the server.
  struct Server {
    std::string token;  // random, of this process
    std::array<std::shared_ptr<SliceWorker>, 2> workers;
    bool paused = false, session = false;
    std::string label = "default";
    std::optional<Digest> cached;  // the weights that made the prefix cache; none: it is empty
  };

  Result<std::string> carry_out(Server& server, const std::string& operation,
                                const std::string& arguments);
  static Result<std::string> rpc(Server& server, const std::string& arguments);
  [[nodiscard]] bool alive() const { return server_ != nullptr && !server_->dead && life_; }

  World& world_;
  const std::string name_;
  std::shared_ptr<Process> server_;
  std::shared_ptr<Server> life_;  // of server_
  std::shared_ptr<CallQueue> queue_;
  std::string last_status_;  // the server that replied to the last status call
};

}  // namespace driftless::testing
