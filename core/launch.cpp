// SPDX-License-Identifier: Apache-2.0
#include "core/launch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <vector>

namespace driftless {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"none",     "mpirun", "srun",
                                                    "torchrun", "ray",    "variables"};
// Step ids from here on belong to batch scripts and interactive shells, not to srun.
constexpr unsigned kFirstSpecialStep = 0xffff'fff0;

class Reader {
 public:
  Reader(const Variables& variables, long parent) : get_(variables), parent_(parent) {}

  [[nodiscard]] Result<Launch> read(const std::optional<std::string>& named) {
    DRIFTLESS_ASSIGN_OR_RETURN(Launcher launcher, named ? parse(*named) : Result(innermost()));
    Launch launch;
    launch.launcher = launcher;
    switch (launcher) {
      case Launcher::kNone: break;
      case Launcher::kMpirun: of_mpirun(launch); break;
      case Launcher::kSrun: of_srun(launch); break;
      case Launcher::kTorchrun: of_torchrun(launch); break;
      case Launcher::kRay:
        launch.world = 0;
        break;  // actors have no ranks but those they are given
      case Launcher::kVariables: of_variables(launch); break;
    }
    if (!named) compare_variables(launch);
    if (launch.address.empty() && launcher != Launcher::kNone && launcher != Launcher::kRay) {
      launch.address = text("MASTER_ADDR");
    }
    if (launch.address.empty()) launch.address = host_of_rank_0(launch);
    DRIFTLESS_RETURN_IF_ERROR(wrong_);
    return launch;
  }

 private:
  [[nodiscard]] static Result<Launcher> parse(std::string_view name) {
    const auto at = std::ranges::find(kNames, name);
    if (at != kNames.end()) return static_cast<Launcher>(at - kNames.begin());
    return error(StatusCode::kInvalidArgument, "launcher '", name,
                 "': expected none, mpirun, srun, torchrun, ray or variables");
  }

  [[nodiscard]] bool has(const char* name) const { return get_(name).has_value(); }
  [[nodiscard]] std::string text(const char* name) const {
    return get_(name).value_or(std::string());
  }
  // Nothing if it is not set.
  [[nodiscard]] std::optional<unsigned> number(const char* name) {
    const std::optional<std::string> value = get_(name);
    if (!value || value->empty()) return std::nullopt;
    unsigned parsed = 0;
    const char* const end = value->data() + value->size();
    const auto [stopped, code] = std::from_chars(value->data(), end, parsed);
    if (code == std::errc() && stopped == end) return parsed;
    note(error(StatusCode::kInvalidArgument, name, " is '", *value, "': expected a number"));
    return std::nullopt;
  }
  [[nodiscard]] unsigned number_or(const char* name, unsigned other) {
    return number(name).value_or(other);
  }
  void note(Status wrong) {
    if (wrong_.ok()) wrong_ = std::move(wrong);
  }

  [[nodiscard]] Launcher innermost() {
    // The raylet starts its workers itself. A child of such a worker has another parent.
    const bool ray = has("RAY_RAYLET_PID");
    if (ray && text("RAY_RAYLET_PID") == std::to_string(parent_)) return Launcher::kRay;
    if (has("TORCHELASTIC_RUN_ID")) return Launcher::kTorchrun;
    if (ray) return Launcher::kRay;
    const bool task = is_task_of_srun();
    const bool pmix = task && has_pmi_of_step();
    if (has("OMPI_COMM_WORLD_RANK") && !pmix) return Launcher::kMpirun;
    if (task) return Launcher::kSrun;
    if (has("PMIX_RANK") || has("PMI_RANK") || has("MPI_LOCALRANKID")) return Launcher::kMpirun;
    return has("RANK") && has("WORLD_SIZE") ? Launcher::kVariables : Launcher::kNone;
  }

  // A shell under salloc and the script of sbatch have some of these variables without being tasks.
  [[nodiscard]] bool is_task_of_srun() {
    const std::optional<unsigned> step = number("SLURM_STEP_ID");
    return has("SLURM_PROCID") && step && *step < kFirstSpecialStep;
  }
  // Whether this step of srun has PMI. Variables that an outer launcher left name another step.
  [[nodiscard]] bool has_pmi_of_step() const {
    const std::string step = concat(text("SLURM_JOB_ID"), ".", text("SLURM_STEP_ID"));
    return (has("PMIX_RANK") && text("PMIX_NAMESPACE") == "slurm.pmix." + step) ||
           (has("PMI_RANK") && text("PMI_JOBID") == step);
  }

  void of_mpirun(Launch& launch) {
    launch.mpi = true;
    launch.rank =
        number_or("OMPI_COMM_WORLD_RANK", number_or("PMIX_RANK", number_or("PMI_RANK", 0)));
    launch.world = number_or("OMPI_COMM_WORLD_SIZE", number_or("PMI_SIZE", 0));
    launch.local_rank = number_or("OMPI_COMM_WORLD_LOCAL_RANK", number_or("MPI_LOCALRANKID", 0));
    launch.attempt = text(has("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "PMI_JOBID");
    all_ = launch.world;
    choose_part(launch);
  }
  // "2 1": mpirun -n 2 trainer : -n 1 rollout. OMPI_FIRST_RANKS has it, too, but is wrong in 4.1.
  void choose_part(Launch& launch) const {
    std::istringstream counts(text("OMPI_APP_CTX_NUM_PROCS"));
    std::vector<unsigned> parts;
    unsigned sum = 0;
    for (unsigned count = 0; counts >> count; sum += count) parts.push_back(count);
    if (sum != launch.world) return;
    for (const unsigned part : parts) {
      if (launch.rank < part) {
        launch.world = part;
        return;
      }
      launch.rank -= part;
    }
  }

  void of_srun(Launch& launch) {
    launch.mpi = has_pmi_of_step();
    launch.rank = number_or("SLURM_PROCID", 0);
    launch.world = all_ = number_or("SLURM_STEP_NUM_TASKS", number_or("SLURM_NTASKS", 1));
    launch.local_rank = number_or("SLURM_LOCALID", 0);
    launch.attempt = concat(text("SLURM_JOB_ID"), ".", text("SLURM_STEP_ID"), ".",
                            number_or("SLURM_RESTART_COUNT", 0));
  }

  void of_torchrun(Launch& launch) {
    of_variables(launch);
    launch.attempt = concat(text("TORCHELASTIC_RUN_ID"), ".", text("TORCHELASTIC_RESTART_COUNT"));
  }
  void of_variables(Launch& launch) {
    launch.rank = number_or("RANK", 0);
    launch.world = number_or("WORLD_SIZE", 0);
    launch.local_rank = number_or("LOCAL_RANK", 0);
  }

  // If a task starts several processes and gives each a rank, WORLD_SIZE exceeds the number of
  // tasks. MPI does not know these ranks, so RANK counts. An engine in a task may set a smaller
  // WORLD_SIZE for its own processes; that one does not describe the job.
  void compare_variables(Launch& launch) {
    if (launch.launcher != Launcher::kMpirun && launch.launcher != Launcher::kSrun) return;
    const std::optional<unsigned> rank = number("RANK");
    const std::optional<unsigned> world = number("WORLD_SIZE");
    if (!rank || !world || all_ == 0) return;
    if (*world > all_) {
      launch = {.launcher = Launcher::kVariables, .attempt = launch.attempt};
      return of_variables(launch);
    }
    if (launch.launcher != Launcher::kSrun || *world != launch.world || *rank == launch.rank)
      return;
    note(error(StatusCode::kInvalidArgument, "RANK is ", *rank, ", but SLURM_PROCID ", launch.rank,
               ", each of ", *world,
               " processes: unset RANK and WORLD_SIZE, or name the launcher whose rank counts"));
  }

  [[nodiscard]] std::string host_of_rank_0(const Launch& launch) {
    const bool job = launch.launcher == Launcher::kMpirun || launch.launcher == Launcher::kSrun;
    if (!job) return {};
    const std::optional<unsigned> local = number("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (launch.launcher == Launcher::kMpirun && local && *local == all_) return "127.0.0.1";
    const bool step = launch.launcher == Launcher::kSrun && has("SLURM_STEP_NODELIST");
    return first_host(text(step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST"));
  }

  const Variables& get_;
  long parent_;
  unsigned all_ = 0;  // processes that the launcher started
  Status wrong_;
};

Status check_place(const Launch& launch) {
  if (launch.world == 0 || launch.rank < launch.world) return {};
  return error(StatusCode::kInvalidArgument, "rank ", launch.rank, " of ", launch.world,
               " processes (launcher: ", to_string(launch.launcher),
               "): expected a rank below that number");
}

}  // namespace

std::string_view to_string(Launcher launcher) { return kNames[static_cast<std::size_t>(launcher)]; }

Result<Launch> read_launch(const Variables& variables, long parent, const LaunchNames& names) {
  if (names.rank.has_value() != names.world.has_value()) {
    return error(StatusCode::kInvalidArgument,
                 "a rank was given without the number of processes, "
                 "or that number without a rank: give both");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(Launch launch, Reader(variables, parent).read(names.launcher));
  if (names.world == 0U) {
    return error(StatusCode::kInvalidArgument, "the number of processes is 0: expected at least 1");
  }
  launch.rank = names.rank.value_or(launch.rank);
  launch.world = names.world.value_or(launch.world);
  launch.local_rank = names.local_rank.value_or(launch.local_rank);
  launch.address = names.address.value_or(launch.address);
  launch.attempt = names.attempt.value_or(launch.attempt);
  DRIFTLESS_RETURN_IF_ERROR(check_place(launch));
  return launch;
}

Result<Launch> launch_of_process(const LaunchNames& names) {
  const auto variable = [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return read_launch(variable, ::getppid(), names);
}

std::string first_host(std::string_view hosts) {
  std::string host;
  for (std::size_t at = 0; at < hosts.size() && hosts[at] != ','; ++at) {
    if (hosts[at] != '[') {
      host += hosts[at];
      continue;
    }
    const std::size_t end = std::min(hosts.find(']', at), hosts.size());
    const std::string_view numbers = hosts.substr(at + 1, end - at - 1);
    host += numbers.substr(0, numbers.find_first_of(",-"));
    at = end;
  }
  return host;
}

}  // namespace driftless
