// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tools/bench/measure.h"

namespace driftless {
namespace {

BenchOptions small(std::string python) {
  BenchOptions options;
  options.side_bytes = std::uint64_t{4} << 20;
  options.threads = 2;
  options.repeats = 1;
  options.python = std::move(python);
  return options;
}

const BenchFigure* find(const BenchReport& report, std::string_view name) {
  const auto at = std::ranges::find(report.figures, name, &BenchFigure::name);
  return at == report.figures.end() ? nullptr : &*at;
}

TEST(Bench, WithoutPythonTheComparisonsAreMissingWithTheReason) {
  const auto report = run_bench(small("/nowhere/python3"));
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  for (const char* name : {"indices", "deltas", "deltas_zstd", "xor", "overwrite", "scatter"}) {
    const BenchFigure* figure = find(*report, std::string(name) + "_vs_numpy");
    ASSERT_NE(figure, nullptr) << name;
    EXPECT_FALSE(figure->value.has_value());
    EXPECT_NE(figure->detail.find("/nowhere/python3"), std::string::npos) << figure->detail;
  }
  for (const char* name : {"diff_vs_read", "diff_deltas_vs_read", "read_gbps", "digest_gbps"}) {
    const BenchFigure* figure = find(*report, name);
    ASSERT_NE(figure, nullptr) << name;
    EXPECT_GT(figure->value.value_or(0), 0) << name;
  }
  std::set<std::string> names;
  for (const BenchFigure& figure : report->figures) {
    EXPECT_TRUE(names.insert(figure.name).second) << figure.name << " is there twice";
  }
}

TEST(Bench, ComparesWithNumpyWhereThereIsOne) {
  const auto report = run_bench(small(""));
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  const BenchFigure* figure = find(*report, "indices_vs_numpy");
  ASSERT_NE(figure, nullptr);
  if (figure->detail.find("no Python with numpy") != std::string::npos) {
    GTEST_SKIP() << figure->detail;
  }
  EXPECT_GT(figure->value.value_or(0), 0) << figure->detail;
  const BenchFigure* compressed = find(*report, "overwrite_vs_numpy");
  EXPECT_TRUE(compressed->value.value_or(0) > 0 ||
              compressed->detail.find("no zstandard") != std::string::npos)
      << compressed->detail;
}

TEST(BenchData, OnePercentDiffersWhateverTheThreads) {
  const auto one = bench::make_bench_data(std::uint64_t{2} << 20, 1);
  const auto two = bench::make_bench_data(std::uint64_t{2} << 20, 2);
  ASSERT_TRUE(one.ok() && two.ok());
  const auto new_bytes = one->new_bytes();
  EXPECT_TRUE(std::equal(new_bytes.begin(), new_bytes.end(), two->new_bytes().begin()));
  std::uint64_t changed = 0;
  for (std::size_t i = 0; i < new_bytes.size(); i += 2) {
    changed += one->old_bytes()[i] != new_bytes[i] ? 1 : 0;  // a step moves the low byte
  }
  EXPECT_NEAR(static_cast<double>(changed) / (static_cast<double>(new_bytes.size()) / 2), 0.01,
              0.001);
}

}  // namespace
}  // namespace driftless
