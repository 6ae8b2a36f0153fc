// SPDX-License-Identifier: Apache-2.0
// A trainer in the simulation: a process with one or two publisher ranks that trains and publishes.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/version.h"
#include "plugin/publish/publisher.h"
#include "sim/notified_engine.h"
#include "sim/world.h"

namespace driftless::testing {

// One trainer over several starts: after a crash it continues with the weights that it had, or with
// older ones.
class Trainer {
 public:
  // `notified`: the engine that it calls for every version; null: none.
  Trainer(World& world, std::string name, Weights base, NotifiedEngine* notified);

  // Starts a process that resumes the run on the road, or begins one, and publishes at most `steps`
  // versions, until it is asked to end.
  void start(std::uint64_t steps);
  [[nodiscard]] bool running() const { return process_ != nullptr && process_->fibers > 0; }
  [[nodiscard]] Process* process() { return process_.get(); }
  [[nodiscard]] const Weights& base() const { return base_; }
  // Whether it began a run instead of resuming one.
  [[nodiscard]] bool began() const { return began_; }
  // The last version for which publish() returned ok.
  [[nodiscard]] const std::optional<VersionId>& published() const { return published_; }

 private:
  struct Ranks;
  void run_rank(Process& process, const std::shared_ptr<Ranks>& ranks, unsigned rank,
                std::uint64_t steps);
  Status open_roads(Ranks& ranks, unsigned rank, Process& process);
  Status publish_all(Ranks& ranks, unsigned rank, std::uint64_t steps);
  void check_published(const PublishReport& report, const Hash128& run);
  void notify(EngineNotifier& notifier, FileSystem& fs, const VersionId& id);

  World& world_;
  const std::string name_;
  const Weights base_;
  NotifiedEngine* const notified_;
  Weights weights_;
  std::shared_ptr<Process> process_;
  std::optional<VersionId> published_;
  bool began_ = false;
};

}  // namespace driftless::testing
