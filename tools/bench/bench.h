// SPDX-License-Identifier: Apache-2.0
// Measures how fast this build is on this machine, as ratios within one run: against only reading
// the memory, and against the usual Python code (numpy and zstandard, in a separate process).
//
// All measurements use one pair of arrays: bf16, split into tensors, with 1 % of the elements
// changed at random places. Every figure is the median of the repeats.
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
  // Size of the old and of the new weights, each; less if memory is short.
  std::uint64_t side_bytes = std::uint64_t{512} << 20;
  unsigned threads = 0;  // 0: all cores that the process may use
  unsigned repeats = 5;
  std::string python;  // empty: python3 or /usr/bin/python3, the first that has the packages
};

struct BenchFigure {
  std::string name;             // "diff_vs_read"
  std::optional<double> value;  // none if it could not be measured: `detail` has the reason
  std::string unit;             // "ratio", "GB/s", "s", "bytes", "threads"
  std::string detail;           // the two things compared
};

// The ratios (larger is better) are diff_vs_read, diff_deltas_vs_read, and {indices, deltas,
// deltas_zstd, xor, overwrite, scatter}_vs_numpy; read_vs_numpy is the upper limit of the first
// two. Absolute figures follow.
struct BenchReport {
  std::vector<BenchFigure> figures;
};

// Uses at most 9 times `side_bytes` of memory while it runs, and leaves no file. If Python or
// its packages are missing, that is no failure: the figures that need them have no value.
[[nodiscard]] Result<BenchReport> run_bench(const BenchOptions& options);

// The combinations of layout and encoding for files with deltas.
inline constexpr std::pair<DirectoryLayout, Encoding> kFileEncodings[] = {
    {DirectoryLayout::kFlush, Encoding::kIndices},
    {DirectoryLayout::kFlush, Encoding::kDeltas},
    {DirectoryLayout::kFlush, Encoding::kDeltasZstd},
    {DirectoryLayout::kFrames, Encoding::kCompact},
    {DirectoryLayout::kHfDelta, Encoding::kXor},
    {DirectoryLayout::kHfDelta, Encoding::kOverwrite}};

// Measures the encodings on a recorded RL run. `directory` contains base.safetensors (the policy at
// version 0) and trace.safetensors: for step S and tensor T `sSSS/T.indices` (I32, flat, ascending)
// and `sSSS/T.values` (of T's dtype). Every step is published in every encoding into a temporary
// directory. The figures are bits per change, for the payload files alone (bits_xor) and for the
// whole version directory (bits_xor_directory).
[[nodiscard]] Result<BenchReport> measure_trace(const std::string& directory, unsigned threads);

}  // namespace driftless
