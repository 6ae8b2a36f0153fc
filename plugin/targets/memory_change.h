// Changes to weights in host memory, worked out beforehand: part of the memory target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/digest.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/targets/version_source.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// What a memory target and the changes made for it share.
struct MemoryWeights {
  WeightLayout layout;
  std::vector<std::byte*> data;       // per tensor; null: not held
  std::vector<DigestTensorKey> keys;  // per tensor
  TargetState state;
  unsigned threads = 1;

  [[nodiscard]] bool holds(std::size_t tensor) const { return data[tensor] != nullptr; }
};

// Adjoining deltas. Everything is proven here: positions, and the digest that the weights will have
// (kMismatch). commit() then looks whether the changed units are still what they were, and writes:
// O(changed), and what it wrote before it found that they are not is undone. Memory: per changed
// unit 4 bytes and its width (twice where versions are folded), plus the parts.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_deltas(
    std::shared_ptr<MemoryWeights> weights, std::vector<VersionSource> chain);

// One full version. Its digest is proven here. Where the weights are a version already and little
// differs, it becomes what differs, as a delta's. Else commit() copies, and cannot be undone.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_full(
    std::shared_ptr<MemoryWeights> weights, VersionSource source);

// A full version, `held` the digest of its tensors that are held here, as what it changes. Null
// where that is more than an eighth of the weights' bytes, and where the weights are not what their
// state says.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_difference(
    std::shared_ptr<MemoryWeights> weights, const VersionSource& source, const Digest& held);

// The digest of the held tensors, as they are.
[[nodiscard]] Digest digest_of(const MemoryWeights& weights);

}  // namespace driftless
