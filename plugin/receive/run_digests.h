// SPDX-License-Identifier: Apache-2.0
// RunDigests: the digest of every tensor of a run, from version to version, and whether they prove
// the version that a target is declared to hold. The announcement has the digests of version 0, and
// each manifest those of the tensors that it changes.
#pragma once

#include <span>

#include "plugin/targets/weight_target.h"

namespace driftless {

class VersionFetcher;

// Updates the digests, ordered as the layout, by a version's manifest. Empty: not known; only a
// full version makes them known again. kMismatch, naming `source`, if the manifest has a digest of
// a tensor that is not in the layout, or if all digests do not add up to its own.
[[nodiscard]] Status follow_digests(const WeightLayout& layout, const Manifest& manifest,
                                    std::string_view source, std::vector<Digest>& digests);

// Follows a target: staged, committed, taken back.
class RunDigests {
 public:
  explicit RunDigests(const RunInfo& run);

  [[nodiscard]] const WeightLayout& layout() const { return layout_; }
  [[nodiscard]] const Hash128& run() const { return run_; }
  // The digest of each tensor, ordered as the layout, at the target's version; empty: not known.
  [[nodiscard]] const std::vector<Digest>& tensors(std::uint64_t version) const;
  // Why nothing proves the target's version; empty: it is proven, or no version is held.
  [[nodiscard]] const std::string& unproven() const { return unproven_; }

  // Proves a target that was opened with this state: kWrongBase if its digest is not the run's
  // digest of that version. If the run has no digest for it, the target is unproven.
  [[nodiscard]] Status prove(const TargetState& state, VersionFetcher& fetcher);
  // Tries again with a manifest that was not there before. On kWrongBase it stays unproven.
  [[nodiscard]] Status prove_again(const TargetState& state, VersionFetcher& fetcher);
  // Finds the digests if the target holds another version than the one committed here.
  void find(const TargetState& state, VersionFetcher& fetcher);
  // A target with only some of the tensors cannot compute the digest of all. If `first` is a delta
  // on version 0, compares its base digest with the run's: kWrongBase.
  [[nodiscard]] Status check_base(const TargetState& state, const FetchedVersion& first) const;
  // Computes the digests after `chain`, on top of what is committed.
  [[nodiscard]] Status stage(std::span<const FetchedVersion> chain);
  // The last staged chain was committed, which proves the target. A target that holds only some of
  // the tensors (`partial`) is proven only if the run has the digests of these.
  void commit(bool partial);
  // The last commit was taken back.
  void undo();

 private:
  struct At {
    std::uint64_t version = 0;
    std::vector<Digest> tensors = {};
  };
  [[nodiscard]] Status prove_some(const TargetState& state);
  [[nodiscard]] Status prove_all(const TargetState& state, VersionFetcher& fetcher);

  WeightLayout layout_;
  Hash128 run_;
  Digest base_;                       // of version 0
  std::vector<Digest> base_tensors_;  // of each tensor of version 0; empty: not known
  At committed_, staged_, before_;
  bool looked_ = false;  // find() ran at least once for committed_
  std::string unproven_;
  std::string unproven_before_;  // unproven_ after undo()
};

}  // namespace driftless
