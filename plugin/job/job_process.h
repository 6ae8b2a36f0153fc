// SPDX-License-Identifier: Apache-2.0
// JobProcess: one process of a job. It has a rank among the processes of its role, and opens its
// side of the road.
//
// Used by one thread, the one that joined. It outlives the groups and roads that it made; destroy
// those before close().
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

  [[nodiscard]] virtual unsigned rank() const = 0;      // among processes of its role
  [[nodiscard]] virtual unsigned trainers() const = 0;  // known trainers that publish
  [[nodiscard]] virtual unsigned rollouts() const = 0;
  // Whether trainers and rollouts were started as one job and can communicate.
  [[nodiscard]] bool together() const { return trainers() > 0 && rollouts() > 0; }

  // Whether other threads than the one that joined may use a road, one at a time. Valid once the
  // road is made.
  [[nodiscard]] bool threads() const { return open_.threads; }

  // The roads that this program links; null: the process was not made by join_job().
  [[nodiscard]] const RoadTable* linked() const { return linked_; }

  // [before its road is made] Sets the GPU with which this process computes (Config::use_gpu()).
  void use_gpu(int device) { config_.use_gpu(device); }

  // [trainers, collective] Makes a new group on every call. For trainers without MPI it contains
  // only this process, unless hub.group is set.
  [[nodiscard]] virtual Result<std::unique_ptr<Group>> group() = 0;
  // Whether the hub forms the groups; if so, the caller passes one of them to sender().
  [[nodiscard]] virtual bool groups_by_hub() const { return false; }
  // [all but bystanders, collective: trainers call sender(), rollouts receiver()] kInvalidArgument
  // if their configurations differ. `anchor_bytes`: memory for an anchor of this rank, if the
  // configuration leaves it open. `joined`: a group of trainers that the caller made, on a road
  // that takes one; null: the trainers of this job.
  [[nodiscard]] Result<std::unique_ptr<SendRoad>> sender(std::uint64_t anchor_bytes,
                                                         const Deadline& deadline,
                                                         Group* joined = nullptr);
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> receiver(const Deadline& deadline);
  // [trainers] A receiver that reads what the road held before this process; null if the road keeps
  // nothing.
  [[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> history();

  // The end-of-run message (run_end.h has its text). [leading trainer, once its road is made]
  // withdraw_end() removes the message of an earlier process of the run; publish_end() sends it to
  // all rollouts at the end. [rollout] fetch_end() returns the message once it was sent. These do
  // nothing on a road that cannot carry the message.
  [[nodiscard]] Status withdraw_end();
  [[nodiscard]] virtual Status publish_end(std::string_view text, const Deadline& deadline);
  [[nodiscard]] virtual Result<std::optional<std::string>> fetch_end();
  // The road that this process uses because the configured one failed; empty: none.
  [[nodiscard]] std::string fallback() const { return open_.fallback ? open_.fallback() : ""; }

  // Collective: ends the process's part in the job in order. Without it the destructor waits for
  // nothing.
  [[nodiscard]] virtual Status close(const Deadline& deadline) = 0;
  // Ends this process and the job that it is part of, so that no other process waits for it.
  [[noreturn]] virtual void abandon(int exit_code) = 0;

 protected:
  // `road` is its row of the table. Subclasses join the process to others.
  JobProcess(Config config, const Road& road, JobRole role)
      : config_(std::move(config)), road_(road), role_(role) {}
  // Waits until all processes that share the road are present, and returns the place at which to
  // open it.
  [[nodiscard]] virtual Result<RoadPlace> meet(std::uint64_t anchor_bytes,
                                               const Deadline& deadline) = 0;
  // A watchdog for the time in which the road is made; null: none is needed.
  [[nodiscard]] virtual std::unique_ptr<Watchdog> watch() const { return nullptr; }

  Config config_;
  const Road& road_;
  JobRole role_;
  std::shared_ptr<hub::Port> port_;  // trainers that use the hub; otherwise null
  OpenRoad open_;

 private:
  // `deadline`: for a fallback that does not answer.
  [[nodiscard]] Result<OpenRoad> open(const RoadPlace& place, const Deadline& deadline);
  // The road that keeps published versions: the configured one, or its fallback.
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

// Joins the job. `launch`: how the processes were started. If an MPI launcher started them, all
// of them join by MPI, whatever the road. Otherwise none does, and if the road needs MPI,
// kInvalidArgument names the roads that do not. Callers without other knowledge pass
// launch_of_process(). `late`: called if MPI waits for longer than
// deadlines.connect in a call without a deadline (here, while the road is made, and at the end);
// see watchdog.h. Without `late` such calls wait without limit. `roads` is road_table() (roads.h);
// if the road is in a library, that is loaded. kUnsupported, with the reason, if the road was not
// built or does not load.
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_job(const RoadTable& roads,
                                                           const Config& config, JobRole role,
                                                           const Launch& launch,
                                                           const LateHandler& late = {});
// As join_job(), for a process that joins by MPI: a JoinMpi (mpi_job.cpp, in builds with MPI).
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_mpi_job(const Config& config,
                                                               const Road& road, JobRole role,
                                                               const LateHandler& late);
// Whether join_job() will find the libraries that it needs; without a role, whether the build has
// them.
[[nodiscard]] Status check_available(const RoadTable& roads, const Config& config,
                                     const Launch& launch, std::optional<JobRole> role = {});
// The configuration's road with its opener, for reading its content without joining the job. If the
// road is in a library, that is loaded. kUnsupported, with the reason.
[[nodiscard]] Result<const Road*> find_road(const RoadTable& roads, const Config& config);
// Whether the configuration's road can be used by trainers that were joined without MPI.
[[nodiscard]] bool takes_groups(const RoadTable& roads, const Config& config);

// A rollout's name on the road: receiver.id, or a name made of its place.
[[nodiscard]] std::string receiver_id(const Config& config, const JobProcess& process,
                                      unsigned rollout);
// Replaces "{role}" and "{rank}" in a path.
[[nodiscard]] std::string filled_in(std::string path, std::string_view role, unsigned rank);

}  // namespace driftless
