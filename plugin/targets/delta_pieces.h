// SPDX-License-Identifier: Apache-2.0
// Deltas of several versions, decoded and folded: every changed unit once, with its last value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "formats/tensor_patcher.h"

namespace driftless {

inline constexpr std::uint32_t kMaxPieceUnits = 16384;

// Changes of one tensor, close to each other: units origin + offsets[k] become values[k].
struct DeltaPiece {
  std::uint32_t tensor = 0;
  std::uint32_t count = 0;   // at most kMaxPieceUnits
  std::uint64_t origin = 0;  // in units
  const std::uint32_t* offsets = nullptr;
  const std::byte* values = nullptr;  // in the buckets, or in the fold's memory
  std::byte* old_values = nullptr;    // room for as many, for who commits
};

// What one tensor goes through: its pieces in the buckets of each version that changes it, in the
// order of the versions.
struct TensorVersions {
  std::uint32_t tensor = 0;
  std::vector<std::span<const BucketPiece>> versions;
};

// Changes and what they point to, in the order of the tensors. No two touch the same unit.
struct DeltaPieces {
  struct Memory {
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> values;  // empty if the pieces' values lie elsewhere
    std::vector<std::byte> old_values;
  };
  std::vector<DeltaPiece> pieces;
  std::vector<Memory> memory;
  std::uint64_t units = 0;
};

// Checks that the positions of a tensor ascend within a version, from piece to piece, too
// (kCorrupt). O(changed), on `threads` threads. What the buckets point to must outlive the result.
[[nodiscard]] Result<DeltaPieces> fold_deltas(const WeightLayout& layout,
                                              std::span<const TensorVersions> tensors,
                                              unsigned threads);

}  // namespace driftless
