// SPDX-License-Identifier: Apache-2.0
// How rollouts learn that a run has ended, and whether the trainer still receives their reports.
//
// Roads do not carry the end of a run. Processes that mpirun started together send it to each
// other. For rollouts that were started separately, a trainer on shared_fs leaves
// <dir>/closed.json, and the sender of host_shm leaves a note in the shared memory
// (RoadOpener::publish_end).
#pragma once

#include <optional>

#include "core/deadline.h"
#include "core/digest.h"
#include "core/hash128.h"

namespace driftless {

// The end-of-run note of the trainer.
struct EndOfRun {
  Hash128 run;
  std::uint64_t version = 0;
  Digest digest;
};
[[nodiscard]] std::string end_to_json(const EndOfRun& end);
[[nodiscard]] Result<EndOfRun> parse_end(std::string_view text, std::string_view what);

// [rollout, agent] Reads the end-of-run note.
class EndListener {
 public:
  using Note = Result<std::optional<std::string>>;
  // On some file systems the bytes of the note arrive late: an unreadable note counts as missing
  // for `patience` (deadlines.fetch).
  explicit EndListener(std::chrono::milliseconds patience) : patience_(patience) {}
  // Nothing while the run goes on. The end of another run is ignored.
  [[nodiscard]] Result<std::optional<EndOfRun>> listen(const Note& note, const Hash128& run);

 private:
  std::chrono::milliseconds patience_;
  std::optional<Deadline> unreadable_;
};

// [rollout, agent] Whether reports reach the trainer. Waiting for versions does not fail if the
// trainer is gone; only reports do.
class TrainerContact {
 public:
  static constexpr std::chrono::seconds kSignOfLife{1};

  // `patience`: deadlines.connect.
  explicit TrainerContact(std::chrono::milliseconds patience) : patience_(patience) {}
  // Whether the next report is due: at once if the last one timed out.
  [[nodiscard]] bool due() const { return silent() || alive_.expired(); }
  // The time for one report: `longest` at most, and short enough for a second one within the
  // patience.
  [[nodiscard]] static std::chrono::milliseconds report_time(std::chrono::milliseconds longest,
                                                             std::chrono::milliseconds patience);
  // The deadline of the report that begins now: report_time() at most.
  [[nodiscard]] Deadline begin_report(std::chrono::milliseconds longest);
  // Records the outcome of the report that began last.
  void note(const Status& report);
  // Whether the last report was not accepted in time.
  [[nodiscard]] bool silent() const { return silent_.has_value(); }
  // kDeadlineExceeded if every report of the last `patience` timed out, and there were several: if
  // this process was stopped during a report, the next one may reach the trainer.
  [[nodiscard]] Status check(std::uint64_t version) const;

 private:
  static constexpr std::chrono::milliseconds kLeastTime{1'000};  // of one report

  std::chrono::milliseconds patience_;
  Deadline alive_ = Deadline::after(std::chrono::milliseconds(0));
  Deadline end_ = alive_;           // of the patience, if the report that began last times out
  std::optional<Deadline> silent_;  // runs from the beginning of the first report that timed out
  bool again_ = false;              // another one timed out since
  Status last_report_;
};

}  // namespace driftless
