// SPDX-License-Identifier: Apache-2.0
// PublisherSession: one trainer rank's place in a job: group, road, publisher, metrics, the engines
// that are told about every version, and the end of the run. The command and the Python module are
// thin callers of it.
//
// Collective calls are those of Publisher. One thread at a time. The process outlives it.
#pragma once

#include <future>

#include "plugin/job/checkpoint_patchers.h"
#include "plugin/job/job_process.h"
#include "plugin/job/metrics.h"
#include "plugin/job/notified_engines.h"
#include "plugin/job/record_sinks.h"
#include "plugin/receive/run_end.h"

namespace driftless {

// Whether a receiver that holds a version holds some of the tensors: then the digest that it
// reports is theirs, and not the version's.
[[nodiscard]] bool wants_parts(const ReceiverReport& report);

class PublisherSession {
 public:
  // Collective. `base`: version 0 (Publisher::open()). `group`: of trainers that no MPI launcher
  // joined, on a road that takes one; null: the process' own. config.publisher.device is the GPU to
  // compare on. `live`: of a publisher without a snapshot (Publisher::open()).
  [[nodiscard]] static Result<std::unique_ptr<PublisherSession>> open(
      const Config& config, JobProcess& process, WeightSource& base,
      std::unique_ptr<Group> group = nullptr, WeightSource* live = nullptr);

  // Collective: Publisher::publish(), and a line of metrics.
  [[nodiscard]] Result<PublishReport> publish(WeightSource& weights,
                                              std::optional<std::uint64_t> step = std::nullopt);
  // Without a snapshot: the same on a thread of its own, once what is watched was compared. The
  // weights, `live`, stay as they are until wait_behind(), which all other calls here do first. If
  // the road is bound to its thread the version is made within the call. `stream`:
  // Publisher::observe()'s.
  void publish_behind(WeightSource& weights, WeightSource& live, void* stream = nullptr,
                      std::optional<std::uint64_t> step = std::nullopt);
  // Waits for the version of publish_behind(); how it went, once. Nothing: there was none.
  [[nodiscard]] std::optional<Result<PublishReport>> wait();
  // Waits for it, too, and leaves wait() to say how it went. Before publisher() and road() are
  // used. `in_step`: it holds up the trainer's step.
  void wait_behind(bool in_step = false);
  [[nodiscard]] bool under_way() const { return under_way_.valid(); }
  [[nodiscard]] Status capture(std::span<const Publisher::NewTensor> values,
                               void* stream = nullptr);
  void doubt();  // Publisher::doubt()
  // [leader] Tells the engines that a version is there, and waits for them; returns what failed.
  // Those that load a checkpoint are told once it is patched (checkpoint_patchers.h). A version
  // that all engines acknowledged is removed if notify.cleanup says so and no rollout needs it;
  // `rollouts` have to be heard of first. Nothing without engines.
  [[nodiscard]] std::vector<Status> tell_engines(std::uint64_t version, std::size_t rollouts = 0);
  // [leader] Of the engines; null without.
  [[nodiscard]] const NotifiedEngines* engines() const { return engines_.get(); }
  // [leader] What the rollouts of this run last said. A report that a receiver of another run left
  // behind, or still makes, is not among them.
  [[nodiscard]] Result<std::vector<ReceiverReport>> listen();
  // [leader] The last version is the run's last word. Engines that this process told nothing,
  // because it was started again and made no version, are told of it first. If a version behind a
  // step failed, and nobody asked how it went, this says it, once, and declares nothing.
  [[nodiscard]] Status declare_end();

  [[nodiscard]] bool leads() const { return group_->leads(); }
  [[nodiscard]] unsigned rank() const { return group_->rank(); }
  // Of the versions, the engines that are told, the rollouts and the end. Between other calls.
  [[nodiscard]] RecordFanout& records() { return sinks_->records(); }
  [[nodiscard]] Publisher& publisher() { return *publisher_; }
  [[nodiscard]] const Publisher& publisher() const { return *publisher_; }
  [[nodiscard]] SendRoad& road() { return *road_; }
  // The road that it publishes on in place of the configured one; empty: on that one.
  [[nodiscard]] std::string fallback() const { return process_.fallback(); }
  // The last version that was committed.
  [[nodiscard]] EndOfRun newest() const {
    return {publisher_->version().run, publisher_->version().version, publisher_->digest()};
  }

 private:
  PublisherSession(Config config, JobProcess& process)
      : config_(std::move(config)), process_(process) {}
  [[nodiscard]] Status start(WeightSource& base, std::unique_ptr<Group> group, WeightSource* live);
  [[nodiscard]] Result<PublishReport> publish_now(WeightSource& weights, bool in_step,
                                                  std::optional<std::uint64_t> step);
  [[nodiscard]] Result<std::vector<ReceiverReport>> listen_to_all();  // whatever their run
  void record(Result<PublishReport>& report);
  // What the rollouts of this run last reported, for those that show it.
  [[nodiscard]] Result<std::vector<ReceiverReport>> hear_rollouts();
  void record_engines();
  [[nodiscard]] bool needed(std::uint64_t version, std::size_t rollouts);
  // Of each checkpoint that engines load.
  [[nodiscard]] std::map<std::string, Status> patched(std::uint64_t version, std::size_t rollouts);
  [[nodiscard]] std::map<std::string, Status> wait_patched(std::uint64_t version,
                                                           std::size_t rollouts);

  Config config_;
  JobProcess& process_;
  // Destroyed in the opposite order of their making.
  std::unique_ptr<Group> group_;
  std::unique_ptr<SendRoad> road_;
  std::unique_ptr<ReceiveRoad> history_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<RecordSinks> sinks_;
  std::unique_ptr<NotifiedEngines> engines_;
  CheckpointPatchers patchers_;
  double step_ms_ = 0;  // that the trainer's steps spent here, since the last version
  std::optional<Result<PublishReport>> behind_;   // how the last version behind a step went
  std::future<Result<PublishReport>> under_way_;  // its destructor waits
};

}  // namespace driftless
