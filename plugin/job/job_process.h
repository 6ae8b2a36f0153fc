// SPDX-License-Identifier: Apache-2.0
// JobProcess: one process of a job, its place among the others, and its ends of the road.
//
// Used by one thread: the one that joined. Outlives the groups and roads that it made; those are
// destroyed before close().
#pragma once

#include "collectives/group.h"
#include "core/launch.h"
#include "plugin/job/roads.h"

namespace driftless {

class JobProcess {
 public:
  JobProcess(const JobProcess&) = delete;
  JobProcess& operator=(const JobProcess&) = delete;
  virtual ~JobProcess() = default;

  [[nodiscard]] virtual unsigned rank() const = 0;      // among those of its role
  [[nodiscard]] virtual unsigned trainers() const = 0;  // that it knows of, and that publish
  [[nodiscard]] virtual unsigned rollouts() const = 0;
  // Trainers and rollouts were started as one job, and can hear each other.
  [[nodiscard]] bool together() const { return trainers() > 0 && rollouts() > 0; }

  // Whether a road may be used by other threads than the one that joined (one at a time). Known
  // once it is made.
  [[nodiscard]] bool threads() const { return open_.threads; }

  // What this program links; null: the process was not made by join_job().
  [[nodiscard]] const RoadTable* linked() const { return linked_; }

  // [before its road is made] The GPU that this process computes with (Config::use_gpu()).
  void use_gpu(int device) { config_.use_gpu(device); }

  // [trainers, collective] A new one on every call. That of trainers without MPI is of this process
  // alone, unless hub.group is set.
  [[nodiscard]] virtual Result<std::unique_ptr<Group>> group() = 0;
  // Groups are formed by the hub: sender() has to be given one of them.
  [[nodiscard]] virtual bool groups_by_hub() const { return false; }
  // [all but bystanders, collective: trainers call sender(), rollouts receiver()]
  // kInvalidArgument if they are not configured alike. `anchor_bytes`: memory for an anchor of this
  // rank, if the configuration leaves it open. `joined`: the trainers that the caller joined by a
  // group of its own, which the road has to take; null: those that this process knows of.
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender(std::uint64_t anchor_bytes,
                                                         const Deadline& deadline,
                                                         Group* joined = nullptr);
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver(const Deadline& deadline);
  // [trainers] Reads what the road held before this process; null if the road forgets.
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> history();

  // The end of a run (run_end.h has its text). [leading trainer, once its road is made] Takes back
  // what an earlier process of the run said; then, at the end, tells all rollouts. [rollout] What
  // was told, once it was. Nothing on a road that cannot say it.
  [[nodiscard]] Status withdraw_end();
  [[nodiscard]] virtual Status tell_end(std::string_view text, const Deadline& deadline);
  [[nodiscard]] virtual Result<std::optional<std::string>> hear_end();
  // The road that this process uses in place of the configured one, which failed; empty: none.
  [[nodiscard]] std::string fallback() const { return open_.fallback ? open_.fallback() : ""; }

  // Collective: the orderly end. Without it nothing is waited for.
  [[nodiscard]] virtual Status close(const Deadline& deadline) = 0;
  // Ends this process, and with it the job that it is part of: no other process is left waiting.
  [[noreturn]] virtual void abandon(int exit_code) = 0;

 protected:
  // `road` is its row of the table. What joins it to others is its subclasses'.
  JobProcess(Config config, const Road& road, JobRole role)
      : config_(std::move(config)), road_(road), role_(role) {}
  // The place at which the road is opened, once all that share it are there.
  [[nodiscard]] virtual Result<RoadPlace> meet(std::uint64_t anchor_bytes,
                                               const Deadline& deadline) = 0;
  // Lives while the road is made; null: that needs no watching.
  [[nodiscard]] virtual std::unique_ptr<Watchdog> watch() const { return nullptr; }

  Config config_;
  const Road& road_;
  JobRole role_;
  std::shared_ptr<hub::Port> port_;  // of trainers that use the hub; null: of nobody
  OpenRoad open_;

 private:
  [[nodiscard]] Result<OpenRoad> open(const RoadPlace& place);
  // The road that keeps what was published: the configured one, or its fallback.
  [[nodiscard]] const Road& keeping() const { return fallback_ != nullptr ? *fallback_ : road_; }
  [[nodiscard]] Config keeping_config() const {
    return fallback_ != nullptr ? config_.of_fallback() : config_;
  }

  friend Result<std::unique_ptr<JobProcess>> join_job(const RoadTable& roads, const Config& config,
                                                      JobRole role, const Launch& launch,
                                                      const LateHandler& late);
  [[nodiscard]] Status make_port(const Launch& launch, JobRole role);

  const RoadTable* linked_ = nullptr;
  const Road* fallback_ = nullptr;  // the row of Config::fallback(); null: none
};

// `launch`: if its processes find each other by MPI, all that were started join, whatever the road;
// else none does, and kInvalidArgument names the roads to use instead of one that needs MPI.
// launch_of_process() reads it, for programs and for libraries whose caller left it open;
// components are told. `late`: what to do if MPI itself
// waits for longer than deadlines.connect in a call that knows no deadline (here, while the road is
// made, at the end); watchdog.h. Without it such calls are waited for. `roads` is road_table()
// (roads.h); a library that a road is in is loaded. kUnsupported, with the reason, if the road was
// not built or does not load.
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_job(const RoadTable& roads,
                                                           const Config& config, JobRole role,
                                                           const Launch& launch,
                                                           const LateHandler& late = {});
// The same for a process that joins by MPI: a JoinMpi (mpi_job.cpp, where MPI is built).
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_mpi_job(const Config& config,
                                                               const Road& road, JobRole role,
                                                               const LateHandler& late);
// Whether that will find what it needs; without a role, of the build alone.
[[nodiscard]] Status check_available(const RoadTable& roads, const Config& config,
                                     const Launch& launch, std::optional<JobRole> role = {});
// The configuration's road with its opener, to read what it holds without being a process of the
// job. A library that the road is in is loaded. kUnsupported, with the reason.
[[nodiscard]] Result<const Road*> find_road(const RoadTable& roads, const Config& config);
// Whether trainers that something else than MPI joined can use the configuration's road.
[[nodiscard]] bool takes_groups(const RoadTable& roads, const Config& config);

// A rollout's name on the road: receiver.id, or one made of its place.
[[nodiscard]] std::string receiver_id(const Config& config, const JobProcess& process,
                                      unsigned rollout);
// "{role}" and "{rank}" in a path filled in.
[[nodiscard]] std::string filled_in(std::string path, std::string_view role, unsigned rank);

}  // namespace driftless
