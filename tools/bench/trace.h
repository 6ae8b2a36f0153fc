// SPDX-License-Identifier: Apache-2.0
// The encodings measured on a recorded RL run.
#pragma once

#include <string>
#include <utility>

#include "core/status.h"
#include "formats/manifest.h"
#include "tools/bench/bench.h"

namespace driftless {

// All that files of deltas can be.
inline constexpr std::pair<DirectoryLayout, Encoding> kFileEncodings[] = {
    {DirectoryLayout::kFlush, Encoding::kIndices},
    {DirectoryLayout::kFlush, Encoding::kDeltas},
    {DirectoryLayout::kFlush, Encoding::kDeltasZstd},
    {DirectoryLayout::kHfDelta, Encoding::kXor},
    {DirectoryLayout::kHfDelta, Encoding::kOverwrite}};

// `directory` holds base.safetensors (the policy at version 0) and trace.safetensors: for step S
// and tensor T `sSSS/T.indices` (I32, flat, ascending) and `sSSS/T.values` (of T's dtype). Every
// step is published in every encoding into a temporary directory; the figures are bits per changed
// element, of the payload files alone (bits_xor) and of the whole version directory
// (bits_xor_directory).
[[nodiscard]] Result<BenchReport> measure_trace(const std::string& directory, unsigned threads);

}  // namespace driftless
