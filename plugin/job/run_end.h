// SPDX-License-Identifier: Apache-2.0
// How rollouts learn that a run is over.
//
// Roads know no end of a run. Processes that mpirun started together tell each other; for rollouts
// that were started by themselves, a trainer on shared_fs leaves <dir>/closed.json and the sender
// of host_shm a word in the shared memory (the road's row in roads.cpp).
#pragma once

#include "plugin/job/job_process.h"

namespace driftless {

// The trainer's last word.
struct EndOfRun {
  Hash128 run;
  std::uint64_t version = 0;
  Digest digest;
};
[[nodiscard]] std::string end_to_json(const EndOfRun& end);
[[nodiscard]] Result<EndOfRun> parse_end(std::string_view text, std::string_view what);

// [rollout] Listens for the trainer's last word.
class EndListener {
 public:
  // On some file systems the bytes of the last word come late: one that cannot be read counts as
  // not there yet, for `patience` (deadlines.fetch).
  explicit EndListener(std::chrono::milliseconds patience) : patience_(patience) {}
  // Nothing while the run goes on. The end of another run does not count.
  [[nodiscard]] Result<std::optional<EndOfRun>> listen(JobProcess& process, const Hash128& run);

 private:
  [[nodiscard]] static Result<std::optional<EndOfRun>> look(JobProcess& process,
                                                            const Hash128& run);
  std::chrono::milliseconds patience_;
  std::optional<Deadline> unreadable_;
};

}  // namespace driftless
