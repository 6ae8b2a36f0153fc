// What `driftless trainer` and `driftless rollout` have in common: the configuration, signals, and
// how the rollouts learn that the run is over.
//
// Roads know no end of a run. Processes that mpirun started together tell each other; a trainer on
// shared_fs also leaves <dir>/closed.json for rollouts that were started by themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/hash128.h"
#include "plugin/cli/console.h"
#include "plugin/config.h"
#include "plugin/roads.h"

namespace driftless::cli {

struct JobArguments {
  std::string config;
  std::vector<std::string> set;
};

// The configuration that the arguments name, of a kind that was built.
[[nodiscard]] Result<Config> job_config(const Common& common, const JobArguments& arguments);
// Whether an MPI launcher started this process, by what it leaves in the environment.
[[nodiscard]] bool launched_by_mpi();

// Reports what MPI holds for too long, lets `before` clean up, and ends the process. Both outlive
// the job.
[[nodiscard]] LateHandler end_when_late(const Common& common, const std::function<void()>& before);

// From its construction on SIGINT and SIGTERM only ask to stop. One object in a process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();
  // The signal's number, or 0.
  [[nodiscard]] static int received();
};

// The trainer's last word.
struct EndOfRun {
  Hash128 run;
  std::uint64_t version = 0;
  Digest digest;
};
[[nodiscard]] std::string end_to_json(const EndOfRun& end);
[[nodiscard]] Result<EndOfRun> parse_end(std::string_view text, std::string_view what);

// [leading trainer, once its road is made] Takes back what an earlier process of the run said.
[[nodiscard]] Status withdraw_end(const Config& config);
// [leading trainer]
[[nodiscard]] Status declare_end(JobProcess& process, const Config& config, const EndOfRun& end);
// [rollout] Nothing while the run goes on. The end of another run does not count.
[[nodiscard]] Result<std::optional<EndOfRun>> look_for_end(JobProcess& process,
                                                           const Config& config,
                                                           const Hash128& run);

// A rollout's name on the road: receiver.id, or one made of its place.
[[nodiscard]] std::string receiver_id(const Config& config, const JobProcess& process,
                                      unsigned rollout);
// "{role}" and "{rank}" in a path filled in.
[[nodiscard]] std::string filled_in(std::string path, JobRole role, unsigned rank);

}  // namespace driftless::cli
