// SPDX-License-Identifier: Apache-2.0
// Launch: which launcher started this process, with which rank and world size.
//
// Launchers leave variables in the environment, and whatever a process starts inherits them. If
// several launchers left theirs, the innermost one counts: torchrun in a task of srun, mpirun in an
// allocation of Slurm, an actor of Ray on a host that mpirun started. Nothing else in Driftless
// reads these variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"

namespace driftless {

// kVariables: RANK and WORLD_SIZE, set by hand or by a launcher that leaves nothing else.
enum class Launcher : unsigned char { kNone, kMpirun, kSrun, kTorchrun, kRay, kVariables };
// "none", "mpirun", "srun", "torchrun", "ray", "variables"
[[nodiscard]] std::string_view to_string(Launcher launcher);

struct Launch {
  Launcher launcher = Launcher::kNone;
  bool mpi = false;          // the processes find each other by MPI
  unsigned rank = 0;         // in `world`
  unsigned world = 1;        // 0: not known; under mpirun, processes of one program
  unsigned local_rank = 0;   // among all processes that the launcher started on this host
  std::string address = {};  // the host of rank 0; empty: not known
  std::string attempt = {};  // differs between starts of the job; empty: not known
};

// Values that the caller sets in place of the launcher's. A rank needs its world, too.
struct LaunchNames {
  std::optional<std::string> launcher = {};
  std::optional<unsigned> rank = {}, world = {}, local_rank = {};
  std::optional<std::string> address = {}, attempt = {};
};

// The value of a variable, if it is set.
using Variables = std::function<std::optional<std::string>(const char* name)>;

// Depends on its arguments alone. `parent`: the id of the parent process, by which a worker of Ray
// is recognized. kInvalidArgument names the variables that contradict each other or are no numbers.
[[nodiscard]] Result<Launch> read_launch(const Variables& variables, long parent,
                                         const LaunchNames& names = {});
// The launch of this process.
[[nodiscard]] Result<Launch> launch_of_process(const LaunchNames& names = {});

// "gpu[03-05,7]x,other": the first host of a list as Slurm writes it, "gpu03x".
[[nodiscard]] std::string first_host(std::string_view hosts);

}  // namespace driftless
