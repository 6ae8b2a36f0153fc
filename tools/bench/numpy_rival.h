// SPDX-License-Identifier: Apache-2.0
// The usual Python way, timed on the same bytes (numpy_rival.py, which is part of this binary).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "tools/bench/bench_data.h"
#include "tools/bench/bench_host.h"

namespace driftless::bench {

struct RivalTimes {
  std::string description;      // "numpy 1.24.2, zstandard 0.20.0, Python 3.11.2"
  std::vector<Timing> timings;  // by the names of HostTimes
  std::uint64_t changed = 0;    // units that it found
};

// `python`: as in BenchOptions. kUnsupported, saying what is missing, where no Python has the
// packages.
[[nodiscard]] Result<RivalTimes> measure_rival(const BenchData& data, unsigned threads,
                                               unsigned repeats, const std::string& python);

}  // namespace driftless::bench
