// SPDX-License-Identifier: Apache-2.0
// The engines that the leading trainer notifies of every version (`engines` with an action), and a
// count of what each engine took. One thread.
#pragma once

#include <set>

#include "formats/records.h"
#include "plugin/job/config.h"

namespace driftless {

// Counts for one engine. A version that it failed to take counts until the end of the run.
struct EngineTally {
  std::string url;
  std::uint64_t versions = 0;
  std::uint64_t failures = 0;
  std::string error;  // the last failure
};

class NotifiedEngines {
 public:
  // Null if there are no such engines. Reads the token files.
  [[nodiscard]] static Result<std::unique_ptr<NotifiedEngines>> open(const Config& config);
  // An upper bound of the time that notify() takes; 0 without engines.
  [[nodiscard]] static std::chrono::milliseconds longest(const Config& config);

  // Notifies all engines and waits for their answers. Returns the failures, each with version and
  // URL. `patched`: by directory, whether that checkpoint holds the version, for engines that load
  // a checkpoint.
  [[nodiscard]] std::vector<Status> notify(std::uint64_t version,
                                           const std::map<std::string, Status>& patched = {});
  // The checkpoints, as the engines see them, that engines load once a receiver has patched them.
  [[nodiscard]] const std::set<std::string>& checkpoints() const { return checkpoints_; }
  // The newest version of which they were notified; 0: none.
  [[nodiscard]] std::uint64_t newest() const { return newest_; }
  // Whether all of them took the last version.
  [[nodiscard]] bool acknowledged() const { return acknowledged_; }
  [[nodiscard]] Status cleanup(std::uint64_t version);

  [[nodiscard]] const std::vector<EngineTally>& tallies() const { return tallies_; }
  // After the last notify(); apply_ms is the time of all its calls. The caller fills in origin, run
  // and digest.
  [[nodiscard]] const std::vector<EngineRecord>& states() const { return states_; }
  // Ok if every engine took every version; otherwise kIncomplete, naming the engines that did not.
  [[nodiscard]] Status outcome() const;

 private:
  NotifiedEngines(std::string dir, const Config& config, std::unique_ptr<EngineNotifier> notifier);
  [[nodiscard]] std::string version_dir(std::uint64_t version) const;
  void forget_pruned();

  std::string dir_;
  std::chrono::milliseconds longest_;
  std::unique_ptr<EngineNotifier> notifier_;
  std::vector<EngineRecord>
      states_;  // in the order of config.notified_engines(), as the next member
  std::vector<EngineTally> tallies_;  // as config.notified_engines()
  std::set<std::uint64_t> notified_;  // notified versions whose files may still exist
  std::uint64_t newest_ = 0;
  std::set<std::string> checkpoints_;
  bool acknowledged_ = false;
};

}  // namespace driftless
