// SPDX-License-Identifier: Apache-2.0
// Compares two checkpoints: what changed, and how many bytes each encoding needs for it. Writes
// nothing. Memory: buffers, whatever the size of the checkpoints.
#pragma once

#include "plugin/checkpoint/verify.h"
#include "tools/compare/encoding_costs.h"
#include "tools/compare/tensor_groups.h"

namespace driftless {

// By how many ULPs changed weights moved, for the types that `compact` codes.
struct UlpCounts {
  std::uint64_t changed = 0;  // of these types
  std::uint64_t one = 0;      // by one ULP
  std::uint64_t largest = 0;

  void add(const UlpCounts& other);
};

struct ComparedTensor {
  TensorSpec spec;
  std::uint64_t changed_units = 0;
  UlpCounts ulps = {};
};

// A tensor that only one checkpoint has, or that has another type or shape in the other.
struct LayoutDifference {
  std::string tensor;
  std::string before, after;  // "BF16 [2, 3]"; empty: missing
};

struct CheckpointComparison {
  std::string before, after;
  std::vector<ComparedTensor> tensors;  // the common tensors, by name
  std::vector<LayoutDifference> layout_differences;
  std::vector<std::string> notes;  // on copies of tied tensors that were left out
  CompanionDifferences files;
  std::uint64_t changed_tensors = 0, changed_units = 0, total_units = 0, total_bytes = 0;
  UlpCounts ulps;
  std::vector<DensityGroup> layers, kinds;  // layers in natural order, kinds by changed weights
  std::vector<EncodingCost> costs;          // `full` last; empty: nothing changed
  unsigned threads = 1;
  double seconds = 0;

  [[nodiscard]] bool identical() const { return changed_units == 0 && layout_differences.empty(); }
  // Indexes into `tensors` of those that changed, most changed weights first.
  [[nodiscard]] std::vector<std::size_t> most_changed() const;
};

struct CompareOptions {
  std::string before, after;
  unsigned threads = 1;
  Progress progress;  // may be empty
};

// kWrongLayout if the checkpoints have no tensor in common.
[[nodiscard]] Result<CheckpointComparison> compare_two(FileSystem& fs,
                                                       const CompareOptions& options);

}  // namespace driftless
