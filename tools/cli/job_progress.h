// SPDX-License-Identifier: Apache-2.0
// The leading trainer's view of a job, and its output: a line per version and a summary.
//
// A version's line is delayed until every expected rollout has reached the version, so that it can
// show their times, but never for long. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "collectives/road.h"
#include "plugin/job/metrics.h"
#include "plugin/job/notified_engines.h"
#include "plugin/receive/run_end.h"

namespace driftless::cli {

class JobProgress {
 public:
  // `expected`: the rollouts' ids. If empty, at least `least` rollouts are expected; if that is 0,
  // too, all that report and have not signed off.
  JobProgress(bool json, std::vector<std::string> expected, std::size_t least);

  // Sets the version that exists when this process starts.
  void start(const EndOfRun& newest);
  void published(const PublishReport& report, std::string fallback);
  // Takes the rollouts' reports. `left`: ids of rollouts that signed off.
  void update(const std::vector<ReceiverReport>& reports, const std::vector<std::string>& left);
  // Prints the lines of versions that are complete or have waited long enough; with `all` every
  // line.
  void print(bool all);

  // Whether all expected rollouts have reported.
  [[nodiscard]] bool present() const;
  // Whether all expected rollouts hold the last version, as far as their digests can show.
  [[nodiscard]] bool complete() const;
  // Whether there is no rollout to wait for.
  [[nodiscard]] bool nobody() const;
  // The missing rollouts, in one line. The first form is for the wait, the second for its end.
  [[nodiscard]] std::string missing() const { return missing(" have not come yet"); }
  [[nodiscard]] std::string missing_for_good() const { return missing(" never came"); }
  // Whether, by the last reports, a rollout was too far behind and found no anchor.
  [[nodiscard]] bool anchor_wanted() const { return anchor_wanted_; }
  // A counter that grows whenever a rollout makes progress.
  [[nodiscard]] std::uint64_t progress() const { return progress_; }

  // `engines`: the counts of the notified engines.
  void print_summary(std::span<const EngineTally> engines) const;

 private:
  struct Version {
    VersionRecord record;
    std::uint64_t mirror_bytes = 0;
    std::vector<std::string> notes;
    std::string digest;
    double stage_ms = 0, commit_ms = 0;  // of the slowest rollout
    bool staged = false;                 // a rollout has committed this version
  };
  struct Rollout {
    std::uint64_t version = 0;
    std::uint64_t best = 0;    // the highest version it ever reported
    bool there = false;        // it holds a version
    bool wrong = false;        // its last report had another digest than the trainer's
    bool parts = false;        // it holds only some tensors, so its digest is not the version's
    bool left = false;         // it signed off
    bool lost = false;         // it has reported since that it holds nothing or cannot follow
    std::uint64_t before = 0;  // the version it held before that, by its report; 0: none
    std::string last_proof;
  };
  [[nodiscard]] std::string missing(std::string_view absent) const;
  [[nodiscard]] bool counts(const std::string& id) const;
  [[nodiscard]] bool holds_last(const Rollout& rollout) const;
  // Why the rollout has not proven the digest of what it holds; empty: it has.
  [[nodiscard]] static std::string unproven(const Rollout& rollout);
  [[nodiscard]] std::string closing_line(bool engines) const;
  [[nodiscard]] bool passed(std::uint64_t version) const;
  void print_line(const Version& version);
  struct Totals {
    std::uint64_t full_bytes = 0, wire_bytes = 0;
    double publish_ms = 0, stage_ms = 0, commit_ms = 0;  // medians
  };
  [[nodiscard]] Totals totals() const;
  void print_summary_json(std::span<const EngineTally> engines, const Totals& totals) const;

  bool json_;
  std::vector<std::string> expected_;
  std::size_t least_;
  Hash128 run_;
  std::uint64_t last_version_ = 0;
  std::string last_digest_;
  std::map<std::uint64_t, Version> versions_;  // published by this process
  std::uint64_t printed_ = 0;
  bool header_ = false;
  std::map<std::string, Rollout> rollouts_;
  bool anchor_wanted_ = false;
  std::uint64_t progress_ = 0;
};

}  // namespace driftless::cli
