// SPDX-License-Identifier: Apache-2.0
// JobProcess: one process of a job, its place among the others, and its ends of the road.
//
// Used by one thread: the one that joined. Outlives the groups and roads that it made; those are
// destroyed before close().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "collectives/group.h"
#include "collectives/road.h"
#include "core/deadline.h"
#include "core/status.h"
#include "plugin/job/watchdog.h"

namespace driftless {

struct Config;
struct RoadTable;

// A bystander is a process of the trainer that publishes nothing: it joins and closes with the
// others, and has neither a group nor a road.
enum class JobRole : unsigned char { kTrainer, kRollout, kBystander };
[[nodiscard]] std::string_view to_string(JobRole role);  // "trainer", "rollout", "bystander"
// kInvalidArgument for a bystander.
[[nodiscard]] Status check_has_road(JobRole role);

class JobProcess {
 public:
  virtual ~JobProcess() = default;

  [[nodiscard]] virtual unsigned rank() const = 0;      // among those of its role
  [[nodiscard]] virtual unsigned trainers() const = 0;  // that it knows of, and that publish
  [[nodiscard]] virtual unsigned rollouts() const = 0;
  // Trainers and rollouts were started as one job, and can hear each other.
  [[nodiscard]] bool together() const { return trainers() > 0 && rollouts() > 0; }

  // Whether a road may be used by other threads than the one that joined (one at a time). Known
  // once it is made.
  [[nodiscard]] virtual bool threads() const = 0;

  // [trainers, collective] A new one on every call.
  [[nodiscard]] virtual Result<std::unique_ptr<Group>> group() = 0;
  // [all but bystanders, collective: trainers call sender(), rollouts receiver()]
  // kInvalidArgument if they are not configured alike. `anchor_bytes`: memory for an anchor of this
  // rank, if the configuration leaves it open.
  [[nodiscard]] virtual Result<std::unique_ptr<SendRoad>> sender(std::uint64_t anchor_bytes,
                                                                 const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::unique_ptr<ReceiveRoad>> receiver(const Deadline& deadline) = 0;
  // [trainers] Reads what the road held before this process; null if the road forgets.
  [[nodiscard]] virtual Result<std::unique_ptr<ReceiveRoad>> history() = 0;

  // The end of a run (run_end.h has its text). [leading trainer, once its road is made] Takes back
  // what an earlier process of the run said; then, at the end, tells all rollouts. [rollout] What
  // was told, once it was. Nothing on a road that cannot say it.
  [[nodiscard]] virtual Status withdraw_end() = 0;
  [[nodiscard]] virtual Status tell_end(std::string_view text, const Deadline& deadline) = 0;
  [[nodiscard]] virtual Result<std::optional<std::string>> hear_end() = 0;

  // Collective: the orderly end. Without it nothing is waited for.
  [[nodiscard]] virtual Status close(const Deadline& deadline) = 0;
  // Ends this process, and with it the job that it is part of: no other process is left waiting.
  [[noreturn]] virtual void abandon(int exit_code) = 0;
};

// `launched`: mpirun (or another launcher of MPI programs) started this process; all processes that
// it started join. Else MPI is used only if the road needs it. `late`: what to do if MPI itself
// waits for longer than deadlines.connect in a call that knows no deadline (here, while the road is
// made, at the end); watchdog.h. Without it such calls are waited for. `roads` is road_table()
// (roads.h); a library that a road is in is loaded. kUnsupported, with the reason, if the road was
// not built or does not load.
[[nodiscard]] Result<std::unique_ptr<JobProcess>> join_job(const RoadTable& roads,
                                                           const Config& config, JobRole role,
                                                           bool launched,
                                                           const LateHandler& late = {});
// Whether that will find what it needs.
[[nodiscard]] Status check_available(const RoadTable& roads, const Config& config, bool launched);
// Whether an MPI launcher started this process, by what launchers leave in the environment. For
// programs, and for libraries whose caller left it open; components are told.
[[nodiscard]] bool launched_by_mpi();

// A rollout's name on the road: receiver.id, or one made of its place.
[[nodiscard]] std::string receiver_id(const Config& config, const JobProcess& process,
                                      unsigned rollout);
// "{role}" and "{rank}" in a path filled in.
[[nodiscard]] std::string filled_in(std::string path, std::string_view role, unsigned rank);

}  // namespace driftless
