// SPDX-License-Identifier: Apache-2.0
// PublisherSession: one trainer rank in a job: its group, road, publisher, metrics, the engines
// that are notified of every version, and the end of the run. The command and the Python module are
// thin callers of it.
//
// The same calls are collective as in Publisher. One thread at a time. The process outlives it.
#pragma once

#include <future>

#include "plugin/job/checkpoint_patchers.h"
#include "plugin/job/job_process.h"
#include "plugin/job/metrics.h"
#include "plugin/job/notified_engines.h"
#include "plugin/job/record_sinks.h"
#include "plugin/receive/run_end.h"

namespace driftless {

// Whether this receiver holds a version, but only some of its tensors: the digest in its report is
// then that of these tensors, not the version's.
[[nodiscard]] bool wants_parts(const ReceiverReport& report);

class PublisherSession {
 public:
  // Collective. `base`: version 0 (Publisher::open()). `group`: the group of trainers that were
  // joined without an MPI launcher, on a road that takes one; null: the process's own group.
  // config.publisher.device is the GPU that compares. `live`: for a publisher without a snapshot
  // (Publisher::open()).
  [[nodiscard]] static Result<std::unique_ptr<PublisherSession>> open(
      const Config& config, JobProcess& process, WeightSource& base,
      std::unique_ptr<Group> group = nullptr, WeightSource* live = nullptr);

  // Collective: Publisher::publish(), and a metrics line.
  [[nodiscard]] Result<PublishReport> publish(WeightSource& weights,
                                              std::optional<std::uint64_t> step = std::nullopt);
  // Without a snapshot: publishes on a separate thread, once the watched tensors were compared. The
  // weights and `live` must not change until wait_for_background(), which all other calls here run
  // first. If the road is bound to its thread, the version is made within this call. `stream`: as
  // in Publisher::observe().
  void publish_in_background(WeightSource& weights, WeightSource& live, void* stream = nullptr,
                             std::optional<std::uint64_t> step = std::nullopt);
  // Waits for the version of publish_in_background() and returns its result, once. Nothing: there
  // was none.
  [[nodiscard]] std::optional<Result<PublishReport>> wait();
  // As wait(), but leaves the result for wait(). Call it before you use publisher() or road().
  // `in_step`: the wait delays the trainer's step.
  void wait_for_background(bool in_step = false);
  [[nodiscard]] bool under_way() const { return under_way_.valid(); }
  [[nodiscard]] Status capture(std::span<const Publisher::NewTensor> values,
                               void* stream = nullptr);
  void doubt();  // Publisher::doubt()
  // [leader] Notifies the engines of a version and waits for them; returns the failures. Engines
  // that load a checkpoint are notified once it is patched (checkpoint_patchers.h). If
  // notify.cleanup is set, a version that all engines acknowledged and no rollout needs is removed;
  // for this `rollouts` receivers must have reported. Does nothing without engines.
  [[nodiscard]] std::vector<Status> notify_engines(std::uint64_t version, std::size_t rollouts = 0);
  // [leader] The notified engines; null without any.
  [[nodiscard]] const NotifiedEngines* engines() const { return engines_.get(); }
  // [leader] The last reports of this run's rollouts. Reports of receivers of another run are left
  // out.
  [[nodiscard]] Result<std::vector<ReceiverReport>> listen();
  // [leader] Declares the newest version to be the run's last. Engines that this process has not
  // notified, because it was restarted and published no version, are notified first. If a version
  // of publish_in_background() failed and its result was not read, this returns the failure, once,
  // and declares nothing.
  [[nodiscard]] Status declare_end();

  [[nodiscard]] bool leads() const { return group_->leads(); }
  [[nodiscard]] unsigned rank() const { return group_->rank(); }
  // Receives the records of versions, notified engines, rollouts and the end. Use it between other
  // calls.
  [[nodiscard]] RecordFanout& records() { return sinks_->records(); }
  [[nodiscard]] Publisher& publisher() { return *publisher_; }
  [[nodiscard]] const Publisher& publisher() const { return *publisher_; }
  [[nodiscard]] SendRoad& road() { return *road_; }
  // The road used in place of the configured one; empty: the configured one.
  [[nodiscard]] std::string fallback() const { return process_.fallback(); }
  // The last committed version.
  [[nodiscard]] EndOfRun newest() const {
    return {publisher_->version().run, publisher_->version().version, publisher_->digest()};
  }

 private:
  PublisherSession(Config config, JobProcess& process)
      : config_(std::move(config)), process_(process) {}
  [[nodiscard]] Status start(WeightSource& base, std::unique_ptr<Group> group, WeightSource* live);
  [[nodiscard]] Result<PublishReport> publish_now(WeightSource& weights, bool in_step,
                                                  std::optional<std::uint64_t> step);
  [[nodiscard]] Result<std::vector<ReceiverReport>> listen_to_all();  // of all runs
  void record(Result<PublishReport>& report);
  // Returns the last reports of this run's rollouts, and passes them to the sinks.
  [[nodiscard]] Result<std::vector<ReceiverReport>> collect_reports();
  void record_engines();
  [[nodiscard]] bool needed(std::uint64_t version, std::size_t rollouts);
  // Whether each checkpoint that engines load is patched to the version.
  [[nodiscard]] std::map<std::string, Status> patched(std::uint64_t version, std::size_t rollouts);
  [[nodiscard]] std::map<std::string, Status> wait_patched(std::uint64_t version,
                                                           std::size_t rollouts);

  Config config_;
  JobProcess& process_;
  // Destroyed in reverse order.
  std::unique_ptr<Group> group_;
  std::unique_ptr<SendRoad> road_;
  std::unique_ptr<ReceiveRoad> history_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<RecordSinks> sinks_;
  std::unique_ptr<NotifiedEngines> engines_;
  CheckpointPatchers patchers_;
  double step_ms_ = 0;  // time of the trainer's steps spent here since the last version
  std::optional<Result<PublishReport>>
      background_result_;                         // result of the last publish_in_background()
  std::future<Result<PublishReport>> under_way_;  // its destructor waits
};

}  // namespace driftless
