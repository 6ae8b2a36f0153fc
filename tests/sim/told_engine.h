// SPDX-License-Identifier: Apache-2.0
// A simulated engine that the trainer tells of each version (EngineNotifier), in one of two ways:
//   flush         it takes whatever files it is told to on top of whatever it holds;
//   pull_weights  its host patches a checkpoint of its own from `hf_delta` directories, up to the
//                 version that it is told, and the engine loads it. The checkpoint outlives the
//                 server, and a version at or below its own is pulled without a look at its run.
// The label that comes with it is taken, too. A load may end in the middle, with an error and some
// of the tensors: such an engine must stay paused.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "plugin/engines/engine_notifier.h"
#include "sim/call_queue.h"
#include "sim/world.h"

namespace driftless::testing {

class ToldEngine {
 public:
  ToldEngine(World& world, EngineAction action) : world_(world), action_(action) {}

  // A new server, serving the weights of `base`; it ends the one before.
  void start_server(const Weights& base);
  // The same, from the files that the one before had, if there are any.
  void restart_server(const Weights& base);
  [[nodiscard]] bool pulls() const { return action_ == EngineAction::kPullWeights; }
  [[nodiscard]] Process* server() { return server_.get(); }
  [[nodiscard]] bool running() const { return server_ != nullptr && server_->fibers > 0; }

  // One that tells it, in the trainer's process.
  [[nodiscard]] std::unique_ptr<EngineNotifier> notifier(
      const Hash128& run);  // of the trainer that tells

  // Whether what is served is what the label says, of the run whose files were loaded last.
  [[nodiscard]] std::string check() const;
  [[nodiscard]] bool serves(const VersionId& id) const;
  // No call is on its way to it.
  [[nodiscard]] bool idle() const { return queue_ == nullptr || queue_->taken == queue_->done; }
  // Nobody has told this server anything: it is not the one that said what was heard last.
  [[nodiscard]] bool started_anew() const { return !alive() || life_->label == "default"; }

 private:
  // One life of the server.
  struct Server {
    Weights base, memory;
    std::string label = "default";
    Hash128 run;
    bool paused = false, torn = false;
  };

  [[nodiscard]] HttpAnswer http(const HttpCall& call, std::chrono::milliseconds timeout,
                                const Hash128& run);
  [[nodiscard]] Result<std::string> answer(Server& life, Process& process, const std::string& path,
                                           const std::string& body, const Hash128& run);
  [[nodiscard]] Status load(Server& life, FileSystem& fs, const nlohmann::json& told);
  [[nodiscard]] Status take(Server& life, Weights weights, const std::string& label,
                            const Hash128& run);
  [[nodiscard]] Status pull(FileSystem& fs, std::uint64_t target);
  [[nodiscard]] bool alive() const { return server_ != nullptr && !server_->dead && life_; }

  // What the engine's host has patched.
  struct Checkpoint {
    Weights weights;
    std::uint64_t version = 0;
    Hash128 run;
  };

  World& world_;
  const EngineAction action_;
  Checkpoint checkpoint_;
  std::shared_ptr<Process> server_;
  std::shared_ptr<Server> life_;
  std::shared_ptr<CallQueue> queue_;
  std::weak_ptr<Server> connected_;  // the life that the notifier's connection leads to
};

}  // namespace driftless::testing
