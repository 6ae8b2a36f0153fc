// SPDX-License-Identifier: Apache-2.0
// The engines that the leading trainer tells about every version (`engines` with an action), and
// the account of what they took. One thread.
#pragma once

#include <set>

#include "formats/records.h"
#include "plugin/job/config.h"

namespace driftless {

// What one engine was told. A version that it failed to take counts to the end of the run.
struct EngineTally {
  std::string url;
  std::uint64_t versions = 0;
  std::uint64_t failures = 0;
  std::string error;  // of the last failure
};

class NotifiedEngines {
 public:
  // Null if there are none. Reads the token files.
  [[nodiscard]] static Result<std::unique_ptr<NotifiedEngines>> open(const Config& config);
  // An upper bound of the time that notify() takes; 0 without engines.
  [[nodiscard]] static std::chrono::milliseconds longest(const Config& config);

  // Tells all of them, and waits for their answers. Returns what failed, each with version and URL.
  // `patched`: whether checkpoints hold it, by directory, for engines that load one.
  [[nodiscard]] std::vector<Status> notify(std::uint64_t version,
                                           const std::map<std::string, Status>& patched = {});
  // The checkpoints that engines load once a receiver has patched them, as the engines see them.
  [[nodiscard]] const std::set<std::string>& checkpoints() const { return checkpoints_; }
  // The newest version that they were told of; 0: none.
  [[nodiscard]] std::uint64_t newest() const { return newest_; }
  // Whether all of them took the last version.
  [[nodiscard]] bool acknowledged() const { return acknowledged_; }
  [[nodiscard]] Status cleanup(std::uint64_t version);

  [[nodiscard]] const std::vector<EngineTally>& tallies() const { return tallies_; }
  // As of the last notify(); apply_ms is all that its calls took. Origin, run and digest are the
  // caller's.
  [[nodiscard]] const std::vector<EngineRecord>& states() const { return states_; }
  // Ok if every engine took every version; else kIncomplete, naming those that did not.
  [[nodiscard]] Status outcome() const;

 private:
  NotifiedEngines(std::string dir, const Config& config, std::unique_ptr<EngineNotifier> notifier);
  [[nodiscard]] std::string version_dir(std::uint64_t version) const;
  void forget_pruned();

  std::string dir_;
  std::chrono::milliseconds longest_;
  std::unique_ptr<EngineNotifier> notifier_;
  std::vector<EngineRecord> states_;  // as config.told_engines(), like the following
  std::vector<EngineTally> tallies_;  // as config.told_engines()
  std::set<std::uint64_t> told_;      // versions that may lie there still
  std::uint64_t newest_ = 0;
  std::set<std::string> checkpoints_;
  bool acknowledged_ = false;
};

}  // namespace driftless
