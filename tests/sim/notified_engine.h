// SPDX-License-Identifier: Apache-2.0
// A simulated engine that the trainer calls for each version (EngineNotifier). There are two kinds:
//   flush: it loads the files that the call names on top of whatever it holds.
//   pull_weights: its host patches a checkpoint of its own from `hf_delta` directories, up to the
//     version that the call names, and the engine loads the checkpoint. The checkpoint outlives the
//     server. A version at or below its own is pulled without a check of its run.
// The engine takes the label of the call, too. A load may fail after some of the tensors; such an
// engine must stay paused.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "plugin/engines/engine_notifier.h"
#include "sim/call_queue.h"
#include "sim/world.h"

namespace driftless::testing {

class NotifiedEngine {
 public:
  NotifiedEngine(World& world, EngineAction action) : world_(world), action_(action) {}

  // Starts a new server with the weights of `base`, and ends the one before.
  void start_server(const Weights& base);
  // The same, with the files of the server before, if there are any.
  void restart_server(const Weights& base);
  [[nodiscard]] bool pulls() const { return action_ == EngineAction::kPullWeights; }
  [[nodiscard]] Process* server() { return server_.get(); }
  [[nodiscard]] bool running() const { return server_ != nullptr && server_->fibers > 0; }

  // Makes a notifier for this engine, in the trainer's process.
  [[nodiscard]] std::unique_ptr<EngineNotifier> notifier(const Hash128& run);  // the trainer's run

  // Compares the served weights with the label, in the run whose files were loaded last.
  [[nodiscard]] std::string check() const;
  [[nodiscard]] bool serves(const VersionId& id) const;
  // Whether no call to it is under way.
  [[nodiscard]] bool idle() const { return queue_ == nullptr || queue_->taken == queue_->done; }
  // Whether this server has loaded nothing yet: it was restarted after the last report.
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
  [[nodiscard]] Status load(Server& life, FileSystem& fs, const nlohmann::json& request);
  [[nodiscard]] Status take(Server& life, Weights weights, const std::string& label,
                            const Hash128& run);
  [[nodiscard]] Status pull(FileSystem& fs, std::uint64_t target);
  [[nodiscard]] bool alive() const { return server_ != nullptr && !server_->dead && life_; }

  // The checkpoint that the engine's host patches.
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
