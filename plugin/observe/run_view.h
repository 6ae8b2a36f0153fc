// SPDX-License-Identifier: Apache-2.0
// RunView: what a process knows about its run, collected from its records: the newest versions, the
// engines, the rollouts and the failures so far. The status server answers from it.
//
// Any thread may make any call; each holds a mutex for a moment. Memory is bounded: the newest
// kVersions versions (at most about 30 MB), kPeers engines and as many rollouts, and kCodes codes
// of failures.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

#include "plugin/observe/record_sink.h"
#include "plugin/observe/run_status.h"

namespace driftless {

// Whether the process does its work: for a trainer, whether its run is open; for an agent, whether
// its engines follow.
struct Readiness {
  bool ready = false;
  Hash128 run;
  std::uint64_t version = 0;  // the newest version of the run known to the process
  std::uint64_t lag = 0;      // of the engine that is furthest behind, or of the agent
  std::string reason;         // why the process is not ready
};

class RunView final : public RecordSink {
 public:
  static constexpr std::size_t kVersions = 10'000;
  static constexpr std::size_t kPeers = 4'096;
  static constexpr std::size_t kCodes = 64;
  static constexpr std::chrono::seconds kFailing{60};

  RunView(std::string_view role, unsigned rank) : role_(role), rank_(rank) {}

  // Reports that the run is open at this version. `digest` is hex; empty: not known.
  void open(const Hash128& run, std::uint64_t version, std::string digest);
  // Replaces the list of engines, and what their records reported. Always the whole list.
  void replace(std::vector<EngineRecord> engines);

  // Reports that an agent could not take the next version. Valid until it takes one, or for
  // kFailing.
  void cannot_take(const Status& why);

  // For an agent, which learns about the trainer only from its versions. made() passes the time at
  // which the newest version was made, from its manifest; call it before you add that version's
  // record. reaches_trainer() passes whether this agent's reports reach the trainer.
  void made(std::string_view created);
  void reaches_trainer(bool reaches);
  // For an agent: reports the newest version listed on its road, even if the agent did not take it.
  void listed(std::uint64_t version);
  // Reports that the trainer has declared the end of the run.
  void end_run();

  void add(const VersionRecord& record) override;
  void add(const EngineRecord& record) override;
  void replace(std::span<const RolloutRecord> rollouts) override;
  void failed(const Status& status) override;
  void add(const EndRecord& record) override;

  // The status with the versions above `since`, at most the newest kVersions.
  [[nodiscard]] RunStatus status(std::uint64_t since = 0) const;
  // `max_lag`: by how many versions an agent and its engines may be behind the newest one on the
  // road.
  [[nodiscard]] Readiness readiness(std::uint64_t max_lag) const;

 private:
  [[nodiscard]] bool failing() const;
  [[nodiscard]] TrainerState trainer() const;
  void see(const Hash128& run, std::uint64_t version, std::string digest);

  const std::string_view role_;
  const unsigned rank_;
  mutable std::mutex mutex_;
  bool open_ = false;
  // Readers copy the pointers of this list, so they hold the mutex only for a moment.
  std::deque<std::shared_ptr<const VersionRecord>> versions_;
  std::deque<Moment> made_;   // an agent: times of the newest versions, ascending
  bool reaches_ = true;       // an agent: whether its reports reach the trainer
  std::uint64_t listed_ = 0;  // an agent: the newest version on its road
  RunStatus now_;             // without versions
  std::chrono::steady_clock::time_point failed_at_{};  // when now_.failing was set
};

}  // namespace driftless
