// SPDX-License-Identifier: Apache-2.0
// One of the two ranks that check_mpi() starts: a publisher or a receiver on mpi_rma.
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "plugin/job/job_process.h"
#include "tools/doctor/doctor.h"

namespace driftless::doctor {
namespace {

constexpr std::chrono::seconds kWait{8};
constexpr std::string_view kAnnouncement = "driftless doctor";

Status use_windows(JobProcess& process, bool publishes, const Deadline& deadline) {
  if (publishes) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<SendRoad> road, process.sender(0, deadline));
    return road->announce(kAnnouncement, deadline);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<ReceiveRoad> road, process.receiver(deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string read, road->run_info(deadline));
  if (read == kAnnouncement) return {};
  return error(StatusCode::kCorrupt, "other bytes came through the window than were put there");
}

}  // namespace

Result<int> run_mpi_probe(const RoadTable& roads) {
  ::alarm(static_cast<unsigned>(kWait.count()) + 1);  // ends this process even if MPI hangs
  DRIFTLESS_ASSIGN_OR_RETURN(const Config config,
                             parse_config("road: { kind: mpi_rma, ring_size: 1MiB }", "probe", {}));
  DRIFTLESS_ASSIGN_OR_RETURN(const Launch launch, launch_of_process());
  if (!launch.mpi || launch.world != 2) {
    return error(StatusCode::kInvalidArgument,
                 "mpi probe: this build's MPI finds no rank in the environment that mpirun set: "
                 "mpirun belongs to another MPI than this build");
  }
  const bool publishes = launch.rank == 0;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::unique_ptr<JobProcess> process,
      join_job(roads, config, publishes ? JobRole::kTrainer : JobRole::kRollout, launch));
  const Deadline deadline = Deadline::after(kWait);
  Status done = process->together()
                    ? use_windows(*process, publishes, deadline)
                    : error(StatusCode::kMismatch,
                            "mpi probe: each process is alone: mpirun belongs to another MPI "
                            "than this build");
  if (done.ok()) done = process->close(deadline);
  if (!done.ok()) {
    std::cerr << concat("driftless: ", done.to_string(), "\n");
    process->abandon(1);
  }
  if (!publishes) std::cout << kProbeSuccess << "\n" << std::flush;
  return 0;
}

}  // namespace driftless::doctor
