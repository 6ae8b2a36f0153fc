// SPDX-License-Identifier: Apache-2.0
// The encodings measured on a recorded RL run.
#pragma once

#include <string>

#include "core/status.h"
#include "tools/bench/bench.h"

namespace driftless {

// `directory` holds base.safetensors (the policy at version 0) and trace.safetensors: for step S
// and tensor T `sSSS/T.indices` (I32, flat, ascending) and `sSSS/T.values` (of T's dtype). Every
// step is published in every encoding into a temporary directory; the figures are bits per changed
// element, of the payload files alone (bits_xor) and of the whole version directory
// (bits_xor_directory).
[[nodiscard]] Result<BenchReport> measure_trace(const std::string& directory, unsigned threads);

}  // namespace driftless
