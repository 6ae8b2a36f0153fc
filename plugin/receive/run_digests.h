// SPDX-License-Identifier: Apache-2.0
// RunDigests: the digest of every tensor of a run, from version to version, and whether they prove
// what a target is said to hold. The announcement has those of version 0, and each manifest those
// of the tensors that it changes.
#pragma once

#include <span>

#include "plugin/targets/weight_target.h"

namespace driftless {

class VersionFetcher;

// What a version makes of the digests before it, as the layout. Empty: not known; only a full
// version makes them known again. kMismatch, naming `source`, if the manifest has a digest of a
// tensor that the layout has not, or if all together do not add up to its digest.
[[nodiscard]] Status follow_digests(const WeightLayout& layout, const Manifest& manifest,
                                    std::string_view source, std::vector<Digest>& digests);

// Moves with a target: staged, committed, taken back.
class RunDigests {
 public:
  explicit RunDigests(const RunInfo& run);

  [[nodiscard]] const WeightLayout& layout() const { return layout_; }
  [[nodiscard]] const Hash128& run() const { return run_; }
  // Of each tensor as the layout, at the version that the target holds; empty: not known.
  [[nodiscard]] const std::vector<Digest>& tensors(std::uint64_t version) const;
  // Why nothing proves what the target is said to hold; empty: it is proven, or holds no version.
  [[nodiscard]] const std::string& unproven() const { return unproven_; }

  // A target that was opened with this state must hold what the run has for that version:
  // kWrongBase. If the run does not say, it is unproven.
  [[nodiscard]] Status prove(const TargetState& state, VersionFetcher& fetcher);
  // The same by a manifest that was not there before. kWrongBase stays unproven.
  [[nodiscard]] Status prove_again(const TargetState& state, VersionFetcher& fetcher);
  // The target may hold another version than the one that was committed here.
  void find(const TargetState& state, VersionFetcher& fetcher);
  // A target of some tensors cannot know the digest of all: of version 0 the run says it.
  [[nodiscard]] Status check_base(const TargetState& state, const FetchedVersion& first) const;
  // After what is committed.
  [[nodiscard]] Status stage(std::span<const FetchedVersion> chain);
  // What was staged last, which was committed meanwhile. It was proven on top of what was held
  // before: of all tensors by their digest, of some (`partial`) if the run has theirs.
  void commit(bool partial);
  // The last commit, which was taken back meanwhile.
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
  std::vector<Digest> base_tensors_;  // the same of each tensor; empty: not known
  At committed_, staged_, before_;
  bool looked_ = false;  // committed_ is what was found, at least
  std::string unproven_;
  std::string unproven_before_;  // of what undo() leads back to
};

}  // namespace driftless
