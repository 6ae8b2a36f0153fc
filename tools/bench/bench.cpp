// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "tools/bench/measure.h"

namespace driftless {
namespace {

using bench::BenchData;
using bench::HostTimes;
using bench::RivalTimes;

// Memory that is used, as a multiple of the size of one side (the old or the new weights): two
// sides in this process, two in the file that passes them to Python, two in the Python process, and
// three for the work of both processes.
constexpr std::uint64_t kMemoryPerSideByte = 9;

// Memory available without displacing other data; 0 if the system does not report it.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

std::uint64_t fitting_bytes(std::uint64_t wanted) {
  const std::uint64_t available = available_memory();
  return available == 0 ? wanted : std::min(wanted, available / kMemoryPerSideByte);
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f ms", seconds * 1e3);
  return text;
}

class ReportMaker {
 public:
  ReportMaker(BenchReport& report, const HostTimes& host) : report_(report), host_(host) {}

  void add(std::string name, double value, std::string unit, std::string detail) {
    report_.figures.push_back({std::move(name), value, std::move(unit), std::move(detail)});
  }
  // Adds the ratio of two times: only reading both sides, divided by this work.
  void add_vs_read(std::string name, std::string_view work) {
    const double read = host_.seconds("read"), ours = host_.seconds(work);
    add(std::move(name), read / ours, "ratio",
        concat("reading both sides ", milliseconds(read), ", ", work, " ", milliseconds(ours)));
  }
  void add_speed(std::string name, std::string_view work, double bytes, std::string detail) {
    add(std::move(name), bytes / host_.seconds(work) / 1e9, "GB/s", std::move(detail));
  }
  void add_vs_numpy(const std::string& work, const Result<RivalTimes>& rival) {
    BenchFigure figure{work + "_vs_numpy", std::nullopt, "ratio", ""};
    if (!rival.ok()) {
      figure.detail = concat("not measured: ", rival.status().message());
    } else if (rival->changed != host_.changed) {
      figure.detail = concat("not measured: numpy found ", rival->changed, " changes, we found ",
                             host_.changed);
    } else {
      figure.detail = "not measured: the Python has no zstandard";
      for (const bench::Timing& timing : rival->timings) {
        if (timing.name != work) continue;
        figure.value = timing.seconds / host_.seconds(work);
        figure.detail = concat("ours ", milliseconds(host_.seconds(work)), ", numpy ",
                               milliseconds(timing.seconds));
      }
    }
    report_.figures.push_back(std::move(figure));
  }

  // Adds the upper limit of the ratios to numpy: that of only reading the memory, which every
  // comparison must do.
  void add_ceiling(const Result<RivalTimes>& rival) {
    if (!rival.ok()) return;
    for (const bench::Timing& timing : rival->timings) {
      if (timing.name != "indices") continue;
      add("read_vs_numpy", timing.seconds / host_.seconds("read"), "ratio",
          "only reading both sides, against numpy's indices: the upper limit of indices_vs_numpy");
    }
  }

 private:
  BenchReport& report_;
  const HostTimes& host_;
};

BenchReport make_report(const BenchData& data, unsigned threads, const HostTimes& host,
                        const Result<RivalTimes>& rival) {
  BenchReport report;
  ReportMaker make(report, host);
  const auto side = static_cast<double>(data.side_bytes);
  make.add_vs_read("diff_vs_read", "diff");
  make.add_vs_read("diff_deltas_vs_read", "deltas");
  for (const char* work : {"indices", "deltas", "deltas_zstd", "xor", "overwrite", "scatter"}) {
    make.add_vs_numpy(work, rival);
  }
  make.add_ceiling(rival);
  make.add_speed("read_gbps", "read", 2 * side, "both sides, merely read");
  make.add_speed("diff_gbps", "diff", 2 * side, "both sides, compared");
  make.add_speed("diff_deltas_gbps", "deltas", 2 * side, "both sides, compared and encoded");
  make.add_speed("digest_gbps", "digest", side, "one side, digested");
  make.add("scatter_munits_per_s",
           static_cast<double>(host.changed) / host.seconds("scatter") / 1e6, "M/s",
           "changed elements written into place");
  make.add("side_bytes", side, "bytes", "of the old and of the new weights, each");
  make.add("changed", static_cast<double>(host.changed), "elements", "bf16, at random places");
  make.add("threads", threads, "threads", concat("kernels: ", host_kernels().name));
  if (rival.ok()) report.figures.back().detail += concat("; rival: ", rival->description);
  return report;
}

}  // namespace

Result<BenchReport> run_bench(const BenchOptions& options) {
  constexpr std::uint64_t kMaxSide = std::uint64_t{64} << 30;  // keeps tensors below 2^32 units
  const unsigned threads = options.threads == 0 ? default_threads() : options.threads;
  const unsigned repeats = std::max(1U, options.repeats);
  const std::uint64_t side = std::min(fitting_bytes(options.side_bytes), kMaxSide);
  DRIFTLESS_ASSIGN_OR_RETURN(const BenchData data, bench::make_bench_data(side, threads));
  DRIFTLESS_ASSIGN_OR_RETURN(const HostTimes host, bench::measure_host(data, threads, repeats));
  const Result<RivalTimes> rival = bench::measure_rival(data, threads, repeats, options.python);
  return make_report(data, threads, host, rival);
}

}  // namespace driftless
