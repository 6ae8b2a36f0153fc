// SPDX-License-Identifier: Apache-2.0
// What a run's versions changed, and what each encoding would have taken for them. The run is
// replayed in host memory, from a checkpoint or from its oldest whole version: every version is
// decoded, proven and applied there as a receiver does it. Nothing is written.
//
// Without weights to start from, versions that list positions are counted as they are; of others
// only the manifest is read.
#pragma once

#include "plugin/targets/version_stager.h"
#include "tools/compare/encoding_costs.h"
#include "tools/compare/run_source.h"
#include "tools/compare/tensor_groups.h"

namespace driftless {

struct HistoryVersion {
  FoundVersion found;
  bool replayed = false;  // decoded and proven; else counted as the manifest says
  std::uint64_t changed_units = 0, payload_bytes = 0;
  std::vector<std::uint64_t> by_layer;  // changed weights, as RunHistory::layers; empty: not known
  std::vector<EncodingCost> costs;      // without `full`; empty: not known
};

// A version that could not be used, and why.
struct LeftOutVersion {
  PublicationId id;
  Status why;
};

struct RunHistory {
  std::string run;                                 // hex; empty: others wrote it
  std::uint64_t total_units = 0, total_bytes = 0;  // 0: the layout is not known
  std::vector<HistoryVersion> versions;            // ascending; anchors are not among them
  std::vector<LeftOutVersion> left_out;
  std::vector<std::string> notes;
  std::vector<DensityGroup> layers;           // in natural order; changed_units over all versions
  std::vector<DensityGroup> tensors_changed;  // of all versions, most changed weights first
  std::uint64_t anchors = 0;                  // that were seen
};

struct HistoryOptions {
  std::string base;  // a checkpoint; empty: none
  unsigned threads = 1;
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;
  Progress progress;  // may be empty; counts all weights for each publication
};

// Fails only if nothing can be read at all, or if the base is not one of this run.
[[nodiscard]] Result<RunHistory> read_history(FileSystem& fs, RunSource& source,
                                              const HistoryOptions& options);

}  // namespace driftless
