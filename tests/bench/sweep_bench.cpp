// SPDX-License-Identifier: Apache-2.0
// Measures MappedTarget::sweep(), which reads all weights and compares their digest:
//
//     sweep_bench [GIGABYTES] [THREADS] [REPEATS]
//
// The weights are in host memory, in several layouts. Prints medians: GB of held weights per
// second, and the ratio to only reading as many bytes with as many threads.
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "plugin/targets/mapped_target.h"

namespace driftless {
namespace {

constexpr std::uint64_t kHidden = 2048;

void must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "sweep_bench: %s\n", status.to_string().c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> result) {
  must(result.status());
  return std::move(*result);
}

struct Run {
  std::uint64_t bytes = 0;
  unsigned threads = 0;
  int repeats = 0;
};

struct Times {
  double wall_ms = 0, busy_ms = 0;  // busy_ms: processor time per thread
};

double processor_ms() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto ms = [](const timeval& at) {
    return static_cast<double>(at.tv_sec) * 1e3 + static_cast<double>(at.tv_usec) / 1e3;
  };
  return ms(use.ru_utime) + ms(use.ru_stime);
}

Times medians(const Run& run, const std::function<void()>& work) {
  std::vector<double> wall, busy;
  for (int i = 0; i < run.repeats + 1; ++i) {
    const double before = processor_ms();
    Stopwatch watch;
    work();
    if (i == 0) continue;
    wall.push_back(watch.lap_ms());
    busy.push_back((processor_ms() - before) / run.threads);
  }
  std::sort(wall.begin(), wall.end());
  std::sort(busy.begin(), busy.end());
  return {wall[wall.size() / 2], busy[busy.size() / 2]};
}

void print(const char* name, const Times& times, double bytes, const Times& floor) {
  std::printf("%-28s %8.1f ms %6.2f GB/s %6.2f of a read; by processor time %6.2f GB/s %6.2f\n",
              name, times.wall_ms, bytes / times.wall_ms / 1e6, times.wall_ms / floor.wall_ms,
              bytes / times.busy_ms / 1e6, times.busy_ms / floor.busy_ms);
}

// Reads everything once; the sum keeps the compiler from removing the reads.
Times read_once(const Run& run, const std::byte* bytes) {
  constexpr std::uint64_t kStretch = std::uint64_t{4} << 20;
  std::vector<std::uint64_t> sums(run.threads);
  const Times times = medians(run, [&] {
    must(parallel_for(run.bytes / kStretch, run.threads, [&](std::size_t i, unsigned worker) {
      const auto* const words = reinterpret_cast<const std::uint64_t*>(bytes + i * kStretch);
      std::uint64_t sum = 0;
      for (std::uint64_t k = 0; k < kStretch / 8; ++k) sum ^= words[k];
      sums[worker] += sum;
      return Status();
    }));
  });
  for (const std::uint64_t sum : sums) {
    if (sum == 1) std::printf(" ");
  }
  return times;
}

// How a layer's projections, matrices of kHidden columns, lie in memory.
enum class Kind { kWhole, kRows, kColumns, kWidened, kTransposed };

void sweep(const Run& run, const char* name, Kind kind, std::byte* bytes, const Times& read) {
  const bool widened = kind == Kind::kWidened, columns = kind == Kind::kColumns;
  const unsigned width = widened ? 4 : 2;
  const std::uint64_t rows = 4096, units = rows * kHidden;
  const std::uint64_t count = run.bytes / (units * width);
  std::vector<TensorSpec> specs;
  MappedParts parts;
  for (std::uint64_t i = 0; i < count; ++i) {
    char label[32];
    std::snprintf(label, sizeof(label), "layer.%06u", static_cast<unsigned>(i));
    const std::uint64_t of = kind == Kind::kWhole || widened ? 1 : 2;
    specs.push_back(must(TensorSpec::make(
        label, DType::kBF16, {columns ? rows : of * rows, columns ? of * kHidden : kHidden})));
    WeightMap map;
    map.tensor = static_cast<std::uint32_t>(i);
    map.unit_bytes = width;
    map.cast = widened ? ValueCast::kBF16ToF32 : ValueCast::kNone;
    map.data = bytes + i * units * width;
    map.parameter = label;
    const std::uint64_t stride = columns ? of * kHidden : kHidden;
    const std::vector<std::uint64_t> strides = kind == Kind::kTransposed
                                                   ? std::vector<std::uint64_t>{1, rows}
                                                   : std::vector<std::uint64_t>{kHidden, 1};
    const std::uint64_t first = of == 1 ? 0 : columns ? kHidden : units;
    map.map = must(StridedMap::make({first, {rows, kHidden}, {stride, 1}}, of * units,
                                    {0, {rows, kHidden}, strides}, units));
    parts.maps.push_back(map);
  }
  parts.layout = must(WeightLayout::make(std::move(specs)));
  MappedOptions options;
  options.initial = VersionId{};
  options.initial_digest = Digest();
  if (kind == Kind::kWhole) options.initial_digest.reset();
  options.threads = run.threads;
  const auto target = must(make_mapped_target(std::move(parts), options));
  const Times times = medians(run, [&] { must(target->sweep().status()); });
  const double held = static_cast<double>(count * units * width);
  const double share = held / static_cast<double>(run.bytes);
  print(name, times, held, {read.wall_ms * share, read.busy_ms * share});
}

void measure(const Run& run) {
  std::vector<std::byte> bytes(run.bytes);
  auto* const words = reinterpret_cast<std::uint32_t*>(bytes.data());
  // Fill in float32 values that a bfloat16 can have.
  for (std::uint64_t i = 0; i < run.bytes / 4; ++i) {
    words[i] = static_cast<std::uint32_t>(i * 2654435761U) << 16;
  }
  const Times read = read_once(run, bytes.data());
  print("read once", read, static_cast<double>(run.bytes), read);
  sweep(run, "tensors as they are", Kind::kWhole, bytes.data(), read);
  sweep(run, "rows of fused projections", Kind::kRows, bytes.data(), read);
  sweep(run, "columns", Kind::kColumns, bytes.data(), read);
  sweep(run, "widened to float32", Kind::kWidened, bytes.data(), read);
  sweep(run, "transposed", Kind::kTransposed, bytes.data(), read);
}

}  // namespace
}  // namespace driftless

int main(int argc, char** argv) {
  const auto argument = [&](int at, double or_else) {
    return argc > at ? std::atof(argv[at]) : or_else;
  };
  const std::uint64_t megabytes =
      std::max<std::uint64_t>(64, static_cast<std::uint64_t>(argument(1, 1) * 1024) / 64 * 64);
  driftless::measure(
      {megabytes << 20, static_cast<unsigned>(argument(2, 2)), static_cast<int>(argument(3, 5))});
}
