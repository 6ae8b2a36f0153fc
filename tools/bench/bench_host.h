// SPDX-License-Identifier: Apache-2.0
// The library's own times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "tools/bench/bench_data.h"

namespace driftless::bench {

// Median seconds of each piece of work over all tensors, by name: "read", "diff", "indices",
// "deltas", "deltas_zstd", "xor", "overwrite", "scatter", "digest".
struct Timing {
  std::string name;
  double seconds = 0;
};

struct HostTimes {
  std::vector<Timing> timings;
  std::uint64_t changed = 0;  // units

  [[nodiscard]] double seconds(std::string_view name) const;  // 0 where there is none
};

[[nodiscard]] Result<HostTimes> measure_host(const BenchData& data, unsigned threads,
                                             unsigned repeats);

[[nodiscard]] double median(std::vector<double> values);  // not empty

}  // namespace driftless::bench
