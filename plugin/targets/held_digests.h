// SPDX-License-Identifier: Apache-2.0
// Digests of the tensors that a partial target holds: what they must be after a version, as its
// manifest says, and which of them is not.
#pragma once

#include "plugin/targets/mapped_weights.h"

namespace driftless {

// As TargetState::tensors; null: not known.
using HeldDigests = std::shared_ptr<const std::vector<TensorDigest>>;
// What a version makes of them.
[[nodiscard]] HeldDigests held_after(const MappedWeights& weights, const Manifest& manifest,
                                     const HeldDigests& before);
[[nodiscard]] Digest sum_of(const std::vector<TensorDigest>& digests);

// For messages: the first tensor whose digest is not the expected one, and both; empty if none is.
[[nodiscard]] std::string first_wrong(const WeightLayout& layout,
                                      const std::vector<TensorDigest>& found,
                                      const std::vector<TensorDigest>& expected);
// What pieces, whose old values are there, make of the digests.
[[nodiscard]] std::vector<TensorDigest> digests_with(const MappedWeights& weights,
                                                     std::vector<TensorDigest> digests,
                                                     std::span<const DeltaPiece> pieces);
// Of tensors that lie contiguous, as they are now: reads them.
[[nodiscard]] Result<std::vector<TensorDigest>> read_digests(
    const MappedWeights& weights, const std::vector<TensorDigest>& tensors);
// Of the same tensors in a full version.
[[nodiscard]] Result<std::vector<TensorDigest>> digests_in(
    const MappedWeights& weights, const VersionSource& version,
    const std::vector<TensorDigest>& tensors);

}  // namespace driftless
