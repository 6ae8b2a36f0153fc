// SPDX-License-Identifier: Apache-2.0
// Measures the figures of this host's processor and memory: a publisher and a receiver in this
// process, over host_shm (xor and overwrite: over shared_fs), with made-up weights of which 1 %
// changes.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "tools/plan/figures.h"

namespace driftless {

struct MeasureOptions {
  std::uint64_t side_bytes = std::uint64_t{256}
                             << 20;  // size of the weights; five times as much memory is used
  unsigned threads = 0;              // 0: default_threads()
  unsigned repeats = 5;              // number of versions for the medians
};

// Measures the processor's rates: compare.host, quantize, encode.*, decode.*, sweep, apply.*, hash.
// Uses files in TMPDIR and /dev/shm while it runs.
[[nodiscard]] Result<std::vector<Figure>> measure_figures(const MeasureOptions& options);

}  // namespace driftless
