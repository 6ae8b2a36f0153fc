// SPDX-License-Identifier: Apache-2.0
// Measures the time that metrics and spans add to a version, with 64 engines and 64 receivers:
//
//   metrics_bench [VERSIONS]           prints medians, and those of as many snprintf() calls
//   metrics_bench --print [VERSIONS]   prints the metrics' text after so many versions (default 3);
//                                      one engine has failed, and one receiver is behind
//   metrics_bench --spans [VERSIONS]   prints the spans of the same versions
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "plugin/observe/prometheus_metrics.h"
#include "plugin/observe/span_writer.h"
#include "support/records.h"

namespace driftless {
namespace {

constexpr std::size_t kEach = 64;  // engines, and receivers

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

template <typename Work>
double took_us(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

struct Version {
  VersionRecord version;
  std::vector<EngineRecord> engines;
  std::vector<RolloutRecord> rollouts;

  explicit Version(std::uint64_t number) : version(testing::published_version(number)) {
    for (std::size_t i = 0; i < kEach; ++i) {
      engines.push_back(testing::engine_update(concat("http://10.0.0.", i, ":8000"), number));
      rollouts.push_back(testing::rollout_at(concat("rollout-", i), number));
    }
  }
  void add_to(RecordSink& sink) const {
    sink.add(version);
    for (const EngineRecord& engine : engines) sink.add(engine);
    sink.replace(rollouts);
  }
};

// The minimum to compare with: prints one gauge per name with snprintf().
void print_alike(const Version& version) {
  static volatile int sum = 0;
  std::array<char, 128> line{};
  for (std::size_t i = 0; i < kEach; ++i) {
    sum =
        sum + std::snprintf(line.data(), line.size(), "%s %llu", version.engines[i].engine.c_str(),
                            static_cast<unsigned long long>(version.engines[i].version));
    sum = sum + std::snprintf(line.data(), line.size(), "%s %llu", version.rollouts[i].id.c_str(),
                              static_cast<unsigned long long>(version.rollouts[i].version));
  }
}

int measure(PrometheusMetrics& metrics, std::uint64_t versions) {
  auto spans = open_span_writer("/dev/null");
  if (!spans.ok()) return 1;
  std::vector<double> update, floor, text, span;
  for (std::uint64_t number = 1; number <= versions; ++number) {
    const Version version(number);
    update.push_back(took_us([&] { version.add_to(metrics); }));
    floor.push_back(took_us([&] { print_alike(version); }));
    span.push_back(took_us([&] { version.add_to(**spans); }));
    if (number % 16 == 0) text.push_back(took_us([&] { static_cast<void>(metrics.text()); }));
  }
  const double updates = median(update), floors = median(floor);
  std::printf("one version, %zu engines and receivers: metrics %.1f us (100 at most)\n", kEach,
              updates);
  std::printf("%zu snprintf() of the same names        %.1f us, ratio %.2f\n", 2 * kEach, floors,
              updates / floors);
  std::printf("spans of the same, into /dev/null      %.1f us\n", median(span));
  if (!text.empty()) std::printf("text() of all metrics                  %.1f us\n", median(text));
  return updates <= 100 ? 0 : 1;
}

int print(RecordSink& sink, std::uint64_t versions) {
  for (std::uint64_t number = 1; number <= versions; ++number) {
    Version version(number);
    version.engines.back() = testing::failed_update(version.engines.back().engine, number);
    version.rollouts.back().version = 0;
    version.add_to(sink);
    sink.add(testing::received_version(number));
    sink.add(testing::delivered_version(number));
  }
  return 0;
}

}  // namespace
}  // namespace driftless

int main(int argc, char** argv) {
  using namespace driftless;
  const std::string_view option = argc > 1 ? argv[1] : "";
  const bool prints = option.starts_with("--");
  const int at = prints ? 2 : 1;
  const auto versions = argc > at ? std::strtoull(argv[at], nullptr, 10) : (prints ? 3U : 2'000U);
  if (option == "--spans") {
    auto spans = open_span_writer("/dev/stdout");
    return spans.ok() ? print(**spans, versions) : 1;
  }
  auto metrics = make_prometheus_metrics(testing::origin("trainer"));
  if (!metrics.ok()) {
    std::fprintf(stderr, "metrics_bench: %s\n", metrics.status().to_string().c_str());
    return 1;
  }
  if (!prints) return measure(**metrics, versions);
  print(**metrics, versions);
  return std::fputs((*metrics)->text().c_str(), stdout) < 0;
}
