// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/prometheus_metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "support/records.h"

namespace driftless {
namespace {

using namespace testing;

class Prometheus : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = make_prometheus_metrics(origin("agent"));
    if (made.ok()) {
      metrics = std::move(*made);
      return;
    }
    EXPECT_EQ(made.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(made.status().message().find("prometheus-cpp-dev"), std::string_view::npos);
    GTEST_SKIP() << made.status().message();
  }
  // Whether the text has this line.
  [[nodiscard]] bool has(const std::string& line) const {
    return concat("\n", metrics->text()).find(concat("\n", line, "\n")) != std::string::npos;
  }
  [[nodiscard]] std::size_t lines_with(const std::string& begin) const {
    std::istringstream in(metrics->text());
    std::size_t count = 0;
    for (std::string line; std::getline(in, line);) count += line.starts_with(begin) ? 1 : 0;
    return count;
  }

  std::unique_ptr<PrometheusMetrics> metrics;
};

TEST_F(Prometheus, APublishersVersion) {
  EXPECT_TRUE(has("driftless_version 0"));
  EXPECT_TRUE(has("driftless_failures_total{code=\"mismatch\"} 0"));
  metrics->add(published_version(7));
  metrics->add(published_version(8));
  EXPECT_TRUE(has("# TYPE driftless_version gauge"));
  EXPECT_TRUE(has("driftless_version 8"));
  EXPECT_TRUE(has("# TYPE driftless_versions_total counter"));
  EXPECT_TRUE(has("driftless_versions_total 2"));
  EXPECT_TRUE(has("driftless_bytes_total{kind=\"full\"} 400000"));
  EXPECT_TRUE(has("driftless_bytes_total{kind=\"delta\"} 12000"));
  EXPECT_TRUE(has("driftless_bytes_total{kind=\"wire\"} 14000"));
  EXPECT_TRUE(has("driftless_last_version_timestamp_seconds 1769860800.25"));
  EXPECT_EQ(lines_with("driftless_density 0.025"), 1U);
  EXPECT_TRUE(has("# TYPE driftless_stage_seconds histogram"));
  for (const char* stage : {"compare", "encode", "send", "seal", "publish"}) {
    EXPECT_TRUE(has(concat("driftless_stage_seconds_count{stage=\"", stage, "\"} 2"))) << stage;
  }
  EXPECT_TRUE(has("driftless_stage_seconds_sum{stage=\"publish\"} 0.4"));
  EXPECT_TRUE(has("driftless_stage_seconds_bucket{stage=\"publish\",le=\"0.1\"} 0"));
  EXPECT_TRUE(has("driftless_stage_seconds_bucket{stage=\"publish\",le=\"0.25\"} 2"));
  EXPECT_EQ(lines_with("driftless_info{"), 1U);
  const std::string text = metrics->text();
  EXPECT_NE(text.find("role=\"agent\""), std::string::npos);
  EXPECT_NE(text.find("host=\"host-7\""), std::string::npos);
  EXPECT_NE(text.find("run=\"0123456789abcdeffedcba9876543210\""), std::string::npos);
}

TEST_F(Prometheus, AReceiversVersion) {
  VersionRecord record = received_version(7);
  record.versions = 3;
  metrics->add(record);
  EXPECT_TRUE(has("driftless_versions_total 3"));
  EXPECT_TRUE(has("driftless_bytes_total{kind=\"needed\"} 6500"));
  for (const char* stage : {"fetch", "stage", "pause", "apply", "resume", "commit"}) {
    EXPECT_TRUE(has(concat("driftless_stage_seconds_count{stage=\"", stage, "\"} 1"))) << stage;
  }
  EXPECT_TRUE(has("driftless_stage_seconds_sum{stage=\"commit\"} 0.006"));
  EXPECT_EQ(lines_with("driftless_density "), 0U);
}

TEST_F(Prometheus, EnginesLagUntilTheyHoldTheNewestVersion) {
  metrics->add(delivered_version(7));
  metrics->add(engine_update("http://a:8000", 7));
  EXPECT_TRUE(has("driftless_engine_version{engine=\"http://a:8000\"} 7"));
  EXPECT_TRUE(has("driftless_engine_lag{engine=\"http://a:8000\"} 0"));
  EXPECT_TRUE(has("driftless_engine_proven{engine=\"http://a:8000\"} 1"));
  EXPECT_TRUE(has("driftless_engine_pause_seconds_count{engine=\"http://a:8000\"} 1"));
  metrics->add(delivered_version(9));
  EXPECT_TRUE(has("driftless_engine_lag{engine=\"http://a:8000\"} 2"));
  metrics->add(failed_update("http://a:8000", 9));
  EXPECT_TRUE(has("driftless_engine_version{engine=\"http://a:8000\"} 8"));
  EXPECT_TRUE(has("driftless_engine_lag{engine=\"http://a:8000\"} 1"));
  EXPECT_TRUE(has("driftless_engine_proven{engine=\"http://a:8000\"} 0"));
  EXPECT_TRUE(has("driftless_failures_total{code=\"mismatch\"} 1"));
  EXPECT_TRUE(has("driftless_engine_pause_seconds_count{engine=\"http://a:8000\"} 1"));
}

TEST_F(Prometheus, ReceiversThatAreGoneHaveNoMetrics) {
  metrics->add(published_version(7));
  const std::vector<RolloutRecord> both{rollout_at("a", 7), rollout_at("b", 4)};
  metrics->replace(both);
  EXPECT_TRUE(has("driftless_rollout_version{id=\"a\"} 7"));
  EXPECT_TRUE(has("driftless_rollout_lag{id=\"b\"} 3"));
  std::vector<RolloutRecord> left{rollout_at("a", 7), rollout_at("b", 7)};
  left.back().left = true;
  metrics->replace(left);
  EXPECT_EQ(lines_with("driftless_rollout_lag{"), 1U);
  metrics->replace({});
  EXPECT_EQ(lines_with("driftless_rollout_lag{"), 0U);
}

TEST_F(Prometheus, AnotherRunBeginsAnew) {
  metrics->add(published_version(70));
  VersionRecord other = published_version(1);
  other.run = {1, 2};
  metrics->add(other);
  EXPECT_TRUE(has("driftless_version 1"));
  EXPECT_EQ(lines_with("driftless_info{"), 1U);
}

TEST_F(Prometheus, NamesFromPeersAreEscaped) {
  const std::vector<RolloutRecord> hostile{
      rollout_at("a\"} 1\ndriftless_version 99\n#", 1), rollout_at("back\\slash", 2),
      rollout_at(std::string("\xff\xfe\0z", 4), 3), rollout_at(std::string(100'000, 'x'), 4)};
  metrics->replace(hostile);
  metrics->add(engine_update("http://h\"{}\n/", 1));
  const std::string text = metrics->text();
  EXPECT_EQ(lines_with("driftless_version "), 1U);
  EXPECT_TRUE(has("driftless_version 1"));
  EXPECT_TRUE(has("driftless_rollout_version{id=\"back\\\\slash\"} 2"));
  EXPECT_NE(text.find("{id=\"a\\\"} 1\\ndriftless_version 99\\n#\"} 1"), std::string::npos) << text;
  EXPECT_NE(text.find("{engine=\"http://h\\\"{}\\n/\"} 1"), std::string::npos);
  EXPECT_EQ(text.find('\xff'), std::string::npos);
  EXPECT_NE(text.find("\xef\xbf\xbd"), std::string::npos);  // the replacement character
  EXPECT_LT(text.size(), 50'000U);
}

TEST_F(Prometheus, TheNumberOfNamesIsBounded) {
  constexpr std::size_t kMany = 3 * PrometheusMetrics::kMostSeries;
  std::vector<RolloutRecord> rollouts;
  for (std::size_t i = 0; i < kMany; ++i) {
    metrics->add(engine_update(concat("http://engine-", i), 1));
    rollouts.push_back(rollout_at(concat("rollout-", i), 1));
  }
  metrics->replace(rollouts);
  EXPECT_EQ(lines_with("driftless_engine_version{"), PrometheusMetrics::kMostSeries);
  EXPECT_EQ(lines_with("driftless_engine_pause_seconds_count{"), PrometheusMetrics::kMostSeries);
  EXPECT_EQ(lines_with("driftless_rollout_version{"), PrometheusMetrics::kMostSeries);
  // The engines that were updated last have metrics.
  EXPECT_TRUE(has(concat("driftless_engine_version{engine=\"http://engine-", kMany - 1, "\"} 1")));
  EXPECT_EQ(lines_with("driftless_engine_version{engine=\"http://engine-0\"}"), 0U);
  EXPECT_TRUE(has("driftless_unlisted_rollouts 2048"));
}

TEST_F(Prometheus, ReadWhileItIsWritten) {
  std::jthread reader([this](const std::stop_token& stop) {
    while (!stop.stop_requested()) EXPECT_FALSE(metrics->text().empty());
  });
  for (std::uint64_t version = 1; version < 50; ++version) {
    metrics->add(published_version(version));
    metrics->add(engine_update(concat("http://", version), version));
    metrics->replace(std::vector{rollout_at(concat("id", version), version)});
  }
}

}  // namespace
}  // namespace driftless
