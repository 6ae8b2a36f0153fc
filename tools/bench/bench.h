// SPDX-License-Identifier: Apache-2.0
// How fast this build is on this machine, as ratios of one run: against merely reading the memory,
// and against the usual Python way (numpy and zstandard, in a process of its own).
//
// All measurements are of one pair of arrays: bf16, cut into tensors, 1 % of the elements changed
// at random places. Every figure is the median of the repeats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"
#include "formats/manifest.h"

namespace driftless {

struct BenchOptions {
  std::uint64_t side_bytes = std::uint64_t{512} << 20;  // of the old and of the new weights, each;
                                                        // less where memory is short
  unsigned threads = 0;                                 // 0: all cores that the process may use
  unsigned repeats = 5;
  std::string python;  // empty: the first of python3 and /usr/bin/python3 that has the packages
};

struct BenchFigure {
  std::string name;             // "diff_vs_read"
  std::optional<double> value;  // none if it could not be measured: `detail` says why
  std::string unit;             // "ratio", "GB/s", "s", "bytes", "threads"
  std::string detail;           // what was compared with what
};

// Ratios (larger is better): diff_vs_read, diff_deltas_vs_read, and {indices, deltas, deltas_zstd,
// xor, overwrite, scatter}_vs_numpy; read_vs_numpy is the ceiling of the first two. Beside them
// absolute figures.
struct BenchReport {
  std::vector<BenchFigure> figures;
};

// Takes about 6 times `side_bytes` of memory while it runs, and leaves nothing behind. A Python
// that is missing, or lacks the packages, is no failure: the figures that need it have no value.
[[nodiscard]] Result<BenchReport> run_bench(const BenchOptions& options);

// All that files of deltas can be.
inline constexpr std::pair<DirectoryLayout, Encoding> kFileEncodings[] = {
    {DirectoryLayout::kFlush, Encoding::kIndices},
    {DirectoryLayout::kFlush, Encoding::kDeltas},
    {DirectoryLayout::kFlush, Encoding::kDeltasZstd},
    {DirectoryLayout::kFrames, Encoding::kCompact},
    {DirectoryLayout::kHfDelta, Encoding::kXor},
    {DirectoryLayout::kHfDelta, Encoding::kOverwrite}};

// The encodings on a recorded RL run. `directory` holds base.safetensors (the policy at version 0)
// and trace.safetensors: for step S and tensor T `sSSS/T.indices` (I32, flat, ascending) and
// `sSSS/T.values` (of T's dtype). Every step is published in every encoding into a temporary
// directory; the figures are bits per change, of the payload files alone (bits_xor) and of
// the whole version directory (bits_xor_directory).
[[nodiscard]] Result<BenchReport> measure_trace(const std::string& directory, unsigned threads);

}  // namespace driftless
