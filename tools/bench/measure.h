// SPDX-License-Identifier: Apache-2.0
// The measurements behind bench.cpp: the two arrays, the library's own times on them, and the times
// of the usual Python code (numpy_rival.py, which is embedded in this binary).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout.h"
#include "core/status.h"
#include "kernels/tensor_ops.h"

namespace driftless::bench {

inline constexpr std::size_t kTensors = 24;
inline constexpr double kDensity = 0.01;

// kTensors bf16 tensors of equal size, one after the other, old and new.
struct BenchData {
  WeightLayout layout;
  std::uint64_t side_bytes = 0;
  std::shared_ptr<std::byte> old_side, new_side;  // in large pages, which numpy requests, too
  std::vector<TensorPair> pairs;

  [[nodiscard]] std::span<const std::byte> old_bytes() const {
    return {old_side.get(), side_bytes};
  }
  [[nodiscard]] std::span<const std::byte> new_bytes() const {
    return {new_side.get(), side_bytes};
  }
};

// Makes numbers like those of a trained model; a changed number moves by one ULP. The bytes are the
// same on every machine and for any number of threads.
[[nodiscard]] Result<BenchData> make_bench_data(std::uint64_t side_bytes, unsigned threads);

// Median seconds of each kind of work over all tensors, by name: "read", "diff", "indices",
// "deltas", "deltas_zstd", "xor", "overwrite", "scatter", "digest".
struct Timing {
  std::string name;
  double seconds = 0;
};

struct HostTimes {
  std::vector<Timing> timings;
  std::uint64_t changed = 0;  // in units

  [[nodiscard]] double seconds(std::string_view name) const;  // 0 if there is none
};

[[nodiscard]] Result<HostTimes> measure_host(const BenchData& data, unsigned threads,
                                             unsigned repeats);

[[nodiscard]] double median(std::vector<double> values);  // 0 if empty

struct RivalTimes {
  std::string description;      // "numpy 1.24.2, zstandard 0.20.0, Python 3.11.2"
  std::vector<Timing> timings;  // by the names of HostTimes
  std::uint64_t changed = 0;    // units found changed
};

// `python`: as in BenchOptions. kUnsupported, naming what is missing, if no Python has the
// packages.
[[nodiscard]] Result<RivalTimes> measure_rival(const BenchData& data, unsigned threads,
                                               unsigned repeats, const std::string& python);

}  // namespace driftless::bench
