// SPDX-License-Identifier: Apache-2.0
// Agent: one process per host. It takes each version from the road once, hands it over to the
// host's receivers or writes it into a checkpoint (Delivery), updates the host's engines to it
// (EngineFleet), and reports to the trainer the version that all of them have confirmed.
//
//   Agent agent(config, process, options);
//   agent.open();
//   while (!stopped && !over) over = agent.step();
//   agent.end(!stopped);
//   process.close(deadline);
//
// One thread at a time. The process outlives it. On every way out it resumes the engines and frees
// the shared memory.
#pragma once

#include <set>

#include "plugin/agent/delivery.h"
#include "plugin/engines/engine_fleet.h"
#include "plugin/job/job_process.h"
#include "plugin/job/metrics.h"
#include "plugin/job/record_sinks.h"
#include "plugin/receive/run_end.h"

namespace driftless {

struct AgentRunOptions {
  bool (*stopped)() = nullptr;  // true: open() ends with kDeadlineExceeded; may be null
  std::string base;             // hand-over checkpoint: copied from here if missing
  bool once = false;            // stop once all have the newest version
  // Callbacks; any may be empty. `failed`: a failure that is retried, or that does no harm.
  std::function<void(const VersionRecord&)> delivered;
  std::function<void(const EngineRecord&)> updated;
  std::function<void(const Status&)> failed;
};

struct AgentEnd {
  Hash128 run;
  std::uint64_t version = 0;  // the version that all engines and workers should hold
  std::optional<Digest> digest;
  std::vector<EngineRecord> engines;
  std::size_t workers = 0;  // workers that held it
  bool all_have_it = false;
  std::string lagging;  // if not all have it: the names of those that do not
  Status digests;       // kMismatch: its digest differs from the trainer's
};

// kInvalidArgument for roads that an agent itself offers to its host.
[[nodiscard]] Status check_agent_config(const Config& config);

class Agent {
 public:
  Agent(Config config, JobProcess& process, AgentRunOptions options);

  // Collective (JobProcess::receiver()). Waits for the run's announcement, and starts the engines'
  // sessions.
  [[nodiscard]] Status open();
  // Waits briefly for the next version, hands it over, and reports. True: the agent is done. It is
  // done once the run has ended (or `once` is set), and all hold the last version or had
  // deadlines.connect to reach it. Failures that a retry may mend go to options.failed.
  [[nodiscard]] Result<bool> step();
  // Leaves the road, the engines and the workers. `confirm`: asks each engine once more for its
  // version.
  [[nodiscard]] AgentEnd end(bool confirm);

  [[nodiscard]] bool run_has_ended() const { return end_.has_value(); }

 private:
  [[nodiscard]] Status open_checkpoint();
  [[nodiscard]] Status open_engines();
  [[nodiscard]] Result<bool> deliver();
  [[nodiscard]] bool take_updates();
  [[nodiscard]] bool nobody_there() const;
  [[nodiscard]] std::optional<std::uint64_t> confirmed() const;
  [[nodiscard]] std::uint64_t confirmed_before() const;
  [[nodiscard]] Status report();
  [[nodiscard]] Result<bool> is_over();
  [[nodiscard]] bool all_took(std::uint64_t version);
  [[nodiscard]] bool all_took_or_waits(std::uint64_t version);
  [[nodiscard]] std::string lagging_names(std::uint64_t last) const;
  void complete(EngineRecord& record) const;
  void show();          // updates what the status server shows beside the records
  void look_at_road();  // at most once per kLookAtRoad: how many versions it is behind
  void log(const Status& status) const;
  void fail(const Status& status);  // logs and records it

  Config config_;
  JobProcess& process_;
  AgentRunOptions options_;
  std::vector<EngineEndpoint> engines_;  // the engines that the agent drives
  std::string id_;
  std::unique_ptr<RecordSinks> sinks_;
  std::string checkpoint_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<WeightTarget> target_;  // the checkpoint, if the agent hands over into one
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<Delivery> delivery_;
  std::unique_ptr<EngineFleet> fleet_;  // its sessions use the delivery
  TrainerContact contact_;
  EndListener listener_;
  std::optional<EndOfRun> end_;
  // With `once`: the time limit. Each hand-over restarts it, until the road has nothing newer.
  Deadline once_ = Deadline::after(std::chrono::milliseconds(0));
  bool met_ = false;  // with `once`: the road has nothing newer
  std::optional<Deadline>
      grace_;  // after the end: the time limit for engines and workers that are behind
  std::set<std::string> reached_;  // workers that had the last version
  Waiting waiting_;                // reports the wait for them
  Deadline next_look_ = Deadline::after(std::chrono::milliseconds(0));  // next listing of the road
  double stage_ms_ = 0, commit_ms_ = 0;  // of the last update or hand-over
};

}  // namespace driftless
