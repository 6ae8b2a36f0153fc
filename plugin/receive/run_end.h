// SPDX-License-Identifier: Apache-2.0
// How rollouts learn that a run is over, and whether the trainer still receives their reports.
//
// Roads know no end of a run. Processes that mpirun started together tell each other; for rollouts
// that were started by themselves, a trainer on shared_fs leaves <dir>/closed.json and the sender
// of host_shm a note in the shared memory (the road's row in roads.cpp).
#pragma once

#include <optional>

#include "core/deadline.h"
#include "core/digest.h"
#include "core/hash128.h"

namespace driftless {

// The trainer's last word.
struct EndOfRun {
  Hash128 run;
  std::uint64_t version = 0;
  Digest digest;
};
[[nodiscard]] std::string end_to_json(const EndOfRun& end);
[[nodiscard]] Result<EndOfRun> parse_end(std::string_view text, std::string_view what);

// [rollout, agent] Reads the trainer's last word.
class EndListener {
 public:
  using Heard = Result<std::optional<std::string>>;
  // On some file systems the bytes of the last word come late: one that cannot be read counts as
  // not there yet, for `patience` (deadlines.fetch).
  explicit EndListener(std::chrono::milliseconds patience) : patience_(patience) {}
  // Nothing while the run goes on. The end of another run does not count.
  [[nodiscard]] Result<std::optional<EndOfRun>> listen(const Heard& heard, const Hash128& run);

 private:
  std::chrono::milliseconds patience_;
  std::optional<Deadline> unreadable_;
};

// [rollout, agent] Whether reports reach the trainer. Waiting for versions ends well if the trainer
// is gone; only a report needs it.
class TrainerContact {
 public:
  static constexpr std::chrono::seconds kSignOfLife{1};

  // `patience`: deadlines.connect.
  explicit TrainerContact(std::chrono::milliseconds patience) : patience_(patience) {}
  // No report was made for so long that one is due.
  [[nodiscard]] bool due() const { return alive_.expired(); }
  // How a report went.
  void note(const Status& told);
  // The last report did not come through in time.
  [[nodiscard]] bool silent() const { return silent_.has_value(); }
  // kDeadlineExceeded once no report has come through for the patience.
  [[nodiscard]] Status check(std::uint64_t version) const;

 private:
  std::chrono::milliseconds patience_;
  Deadline alive_ = Deadline::after(std::chrono::milliseconds(0));
  std::optional<Deadline> silent_;  // from the first report that did not come through
  Status told_;
};

}  // namespace driftless
