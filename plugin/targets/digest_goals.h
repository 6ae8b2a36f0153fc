// SPDX-License-Identifier: Apache-2.0
// DigestGoals: the digests that a mapped target's weights must have after each of the versions that
// are staged for it, as the versions' manifests state them. One thread.
#pragma once

#include <functional>

#include "plugin/targets/mapped_weights.h"
#include "plugin/targets/version_source.h"

namespace driftless {

class DigestGoals {
 public:
  DigestGoals(std::shared_ptr<const MappedWeights> weights,
              const std::vector<VersionSource>& versions);

  // The number of digests to reach.
  [[nodiscard]] std::size_t size() const { return goals_.size(); }
  // The versions become one change: only the last digest remains. Messages name it `source`.
  void fold(std::string source);
  // Compares the digest after each version with its goal. `changes`: what each version adds to
  // `before`, as far as it is measured yet. `written`: the changes are in the weights, not only
  // staged. If the goal after the first version is not known, checks instead that writing it added
  // to the digest what staging had measured; a later version without a goal is not checked. Returns
  // the digest after `changes`; kMismatch, naming a wrong tensor if it is known. `found` returns
  // the tensors' digests after the versions.
  [[nodiscard]] Result<Digest> prove(const Digest& before, std::span<const Digest> changes,
                                     bool written,
                                     const std::function<std::vector<TensorShare>()>& found);
  // For a full version, which is proven as a whole: kMismatch if a partial target's tensors do not
  // have the digest that the manifest implies.
  [[nodiscard]] Status check_full(const Digest& digest,
                                  const std::vector<TensorShare>& found) const;

 private:
  // The digest after one of the versions. For a partial state it is that of the tensors that are
  // held, if the manifests have it.
  struct Goal {
    std::optional<Digest> digest;
    std::string source;
  };

  std::optional<Digest> expect_held(const Manifest& manifest);
  [[nodiscard]] std::string first_wrong(const std::vector<TensorShare>& found) const;

  std::shared_ptr<const MappedWeights> weights_;
  bool partial_;
  std::vector<Goal> goals_;
  std::optional<std::vector<TensorShare>> expected_;  // for a partial state: its shares
  Digest staged_change_;  // what the staged first version adds to the digest
};

}  // namespace driftless
