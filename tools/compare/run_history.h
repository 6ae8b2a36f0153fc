// SPDX-License-Identifier: Apache-2.0
// Replays a run to find out what its versions changed, and how many bytes each encoding would have
// needed. The replay is in host memory and starts from a checkpoint or the oldest full version.
// Every version is decoded, proven and applied as by a receiver. Nothing is written.
//
// Without weights to start from, versions that list positions are counted as they are; all others
// are left out, with the counts of their manifests (`compact`: also those of each tensor).
#pragma once

#include "plugin/targets/version_stager.h"
#include "tools/compare/encoding_costs.h"
#include "tools/compare/run_source.h"
#include "tools/compare/tensor_groups.h"

namespace driftless {

struct HistoryVersion {
  FoundVersion found;
  bool replayed = false;  // decoded from its base and proven; false: counted without it
  std::uint64_t changed_units = 0, payload_bytes = 0;
  std::vector<std::uint64_t> by_layer;  // changed weights by RunHistory::layers; empty: not known
  std::vector<EncodingCost> costs;      // without `full`; empty: not known
};

// A version that could not be used, and the reason.
struct LeftOutVersion {
  PublicationId id;
  Status why;
};

struct RunHistory {
  std::string run;                                 // hex; empty: not written by Driftless
  std::uint64_t total_units = 0, total_bytes = 0;  // 0: the layout is not known
  std::vector<HistoryVersion> versions;            // ascending, without anchors
  std::vector<LeftOutVersion> left_out;
  std::vector<std::string> notes;
  std::vector<DensityGroup> layers;           // in natural order; changed_units over all versions
  std::vector<DensityGroup> tensors_changed;  // over all versions, most changed weights first
  std::uint64_t anchors = 0;                  // number of anchors seen
};

struct HistoryOptions {
  std::string base;  // a checkpoint; empty: none
  unsigned threads = 1;
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;
  Progress progress;  // may be empty; counts all weights once per publication
};

// Fails only if nothing can be read at all, or if the base does not belong to this run.
[[nodiscard]] Result<RunHistory> read_history(FileSystem& fs, RunSource& source,
                                              const HistoryOptions& options);

}  // namespace driftless
