// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/digest_goals.h"

#include <algorithm>

namespace driftless {

DigestGoals::DigestGoals(std::shared_ptr<const MappedWeights> weights,
                         const std::vector<VersionSource>& versions)
    : weights_(std::move(weights)), partial_(weights_->state.partial) {
  if (weights_->sums) expected_ = weights_->sums->shares.tensors;
  for (const VersionSource& each : versions) {
    const Manifest& manifest = *each.version().manifest;
    const std::optional<Digest> goal = partial_ ? expect_held(manifest) : manifest.digest;
    goals_.push_back({goal, each.version().path});
  }
}

// Sets expected_ of every held tensor that the manifest lists to the digest there, if the manifest
// has digests. Returns the sum of expected_.
std::optional<Digest> DigestGoals::expect_held(const Manifest& manifest) {
  if (manifest.encoding == Encoding::kFull) expected_ = weights_->no_shares.tensors;
  if (!weights_->summed || !manifest.has_tensor_digests()) expected_.reset();
  if (!expected_) return std::nullopt;
  for (const ManifestTensor& tensor : manifest.tensors) {
    const auto index = weights_->layout.find(tensor.name);
    if (!index || !weights_->maps_any(*index)) continue;
    (*expected_)[weights_->tensors[*index].share].digest = *tensor.digest;
  }
  Digest sum;
  for (const TensorShare& each : *expected_) sum += each.digest;
  return sum;
}

void DigestGoals::fold(std::string source) {
  goals_.erase(goals_.begin(), goals_.end() - 1);
  goals_.back().source = std::move(source);
}

// For messages: the first tensor with an unexpected digest, and both digests; empty if none.
std::string DigestGoals::first_wrong(const std::vector<TensorShare>& found) const {
  for (std::size_t i = 0; i < std::min(found.size(), expected_->size()); ++i) {
    const Digest& expected = (*expected_)[i].digest;
    if (found[i].digest == expected) continue;
    return concat("tensor '", weights_->layout[found[i].tensor].name, "' has digest ",
                  to_hex(found[i].digest), ", expected ", to_hex(expected));
  }
  return {};
}

Result<Digest> DigestGoals::prove(const Digest& before, std::span<const Digest> changes,
                                  bool written,
                                  const std::function<std::vector<TensorShare>()>& found) {
  Digest reached = before;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    reached += changes[i];
    const Goal& goal = goals_[i];
    const bool known = weights_->summed && goal.digest;
    const bool right =
        known ? reached == *goal.digest : !written || i > 0 || changes[i] == staged_change_;
    if (right) continue;
    const std::string wrong = partial_ && expected_ ? first_wrong(found()) : std::string();
    return error(StatusCode::kMismatch, goal.source, ": after it the weights would have digest ",
                 to_hex(reached), known ? concat(", expected ", to_hex(*goal.digest)) : "",
                 wrong.empty() ? wrong : concat(" (", wrong, ")"),
                 written ? ": other code writes into the weights, or the delta is damaged. All "
                           "was undone"
                         : ": other code wrote into them, the trainer wrote weights without "
                           "capture() between two sweeps (capture.sweep_every), or the delta is "
                           "damaged. Nothing was changed",
                 "; send a full version");
  }
  if (!written && !changes.empty()) staged_change_ = changes.front();
  return reached;
}

Status DigestGoals::check_full(const Digest& digest, const std::vector<TensorShare>& found) const {
  const Goal& goal = goals_.back();
  if (!partial_ || !weights_->summed || !goal.digest || digest == *goal.digest) return {};
  return error(StatusCode::kMismatch, goal.source, ": ", first_wrong(found),
               " by the manifest. Nothing was changed; publish another full version");
}

}  // namespace driftless
