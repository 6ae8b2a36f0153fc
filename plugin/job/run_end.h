// How rollouts learn that a run is over.
//
// Roads know no end of a run. Processes that mpirun started together tell each other; a trainer on
// shared_fs also leaves <dir>/closed.json for rollouts that were started by themselves, and the
// sender of host_shm leaves its last word in the shared memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/digest.h"
#include "core/hash128.h"
#include "core/status.h"
#include "plugin/job/config.h"
#include "plugin/job/roads.h"

namespace driftless {

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

}  // namespace driftless
