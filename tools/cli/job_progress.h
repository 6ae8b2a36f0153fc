// SPDX-License-Identifier: Apache-2.0
// What the leading trainer knows of a job, and prints: a line per version and a summary.
//
// A version's line waits until every expected rollout has got that far, so that it can name their
// times, but never for long. One thread.
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
  // `expected`: the rollouts' ids. Empty: at least `least` rollouts, or, if that is 0, whoever
  // reports and does not sign off.
  JobProgress(bool json, std::vector<std::string> expected, std::size_t least);

  // The first version of this process, already there.
  void start(const EndOfRun& newest);
  void published(const PublishReport& report, std::string fallback);
  // `left`: the ids of those that signed off.
  void heard(const std::vector<ReceiverReport>& reports, const std::vector<std::string>& left);
  // Prints the versions that need not wait any more; with `all` every one.
  void print(bool all);

  // All rollouts that are expected have reported.
  [[nodiscard]] bool present() const;
  // All that are waited for hold the last version, with its digest as far as they can tell.
  [[nodiscard]] bool complete() const;
  // There is nobody to wait for.
  [[nodiscard]] bool nobody() const;
  // Which are not, in one line; the second once nobody waits any more.
  [[nodiscard]] std::string missing() const { return missing(" have not come yet"); }
  [[nodiscard]] std::string missing_for_good() const { return missing(" never came"); }
  // Some rollout fell too far behind and finds no anchor, as of the last heard().
  [[nodiscard]] bool anchor_wanted() const { return anchor_wanted_; }
  // Grows whenever a rollout gets on.
  [[nodiscard]] std::uint64_t progress() const { return progress_; }

  // `engines`: what those that were told took.
  void print_summary(std::span<const EngineTally> engines) const;

 private:
  struct Version {
    VersionRecord record;
    std::uint64_t mirror_bytes = 0;
    std::vector<std::string> notes;
    std::string digest;
    double stage_ms = 0, commit_ms = 0;  // the slowest rollout's
    bool staged = false;                 // some rollout ended a commit here
  };
  struct Rollout {
    std::uint64_t version = 0;
    std::uint64_t best = 0;    // the highest that it ever said
    bool there = false;        // holds a version at all
    bool wrong = false;        // reported another digest than the trainer's, last
    bool parts = false;        // holds some tensors only, and so has a digest of its own
    bool left = false;         // signed off
    bool lost = false;         // said since that it holds nothing, or cannot follow
    std::uint64_t before = 0;  // then: what it last held, as it said; 0: nothing
    std::string last_proof;
  };
  [[nodiscard]] std::string missing(std::string_view absent) const;
  [[nodiscard]] bool counts(const std::string& id) const;
  [[nodiscard]] bool holds_last(const Rollout& rollout) const;
  // Empty: it proved the digest of what it holds.
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
  std::map<std::uint64_t, Version> versions_;  // of this process
  std::uint64_t printed_ = 0;
  bool header_ = false;
  std::map<std::string, Rollout> rollouts_;
  bool anchor_wanted_ = false;
  std::uint64_t progress_ = 0;
};

}  // namespace driftless::cli
