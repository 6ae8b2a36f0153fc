// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/metrics.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "core/host_name.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

PublishReport published(std::uint64_t version) {
  PublishReport report;
  report.version = version;
  report.base_version = version - 1;
  report.changed_units = 25;
  report.total_units = 100;
  report.full_bytes = 200;
  report.delta_bytes = 60;
  report.wire_bytes = 70;
  report.process_ms = 1.5;
  report.stages = {1.25, 0.75, 0.25};
  report.manifest_publish_ms = 0.5;
  report.seal_ms = 0.375;
  report.total_ms = 2.5;
  return report;
}

std::vector<nlohmann::json> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(Metrics, ALinePerVersionIsAppendedAndReadableAtOnce) {
  const testing::TempDir dir;
  const std::string path = dir.file("{role}_{rank}.jsonl");
  for (const std::uint64_t version : {1, 2}) {
    auto writer = MetricsWriter::open(path, "trainer", 3);
    ASSERT_TRUE(writer.ok()) << writer.status().to_string();
    ASSERT_TRUE((*writer)->write(to_json(record_of(published(version), 3))).ok());
    EXPECT_EQ(lines_of(dir.file("trainer_3.jsonl")).size(), version);  // while it is still open
  }
  const auto line = lines_of(dir.file("trainer_3.jsonl")).back();
  EXPECT_EQ(line["role"], "trainer");
  EXPECT_EQ(line["rank"], 3);
  EXPECT_EQ(line["version"], 2);
  EXPECT_EQ(line["run"], std::string(32, '0'));
  EXPECT_EQ(line["host"], host_name());
  EXPECT_EQ(line["time"].get<std::string>().size(), std::string("2026-01-31T12:00:00.250Z").size());
  EXPECT_EQ(line["density"], 0.25);
  EXPECT_EQ(line["wire_bytes"], 70);
  EXPECT_EQ(line["compare_ms"], 1.25);
  EXPECT_EQ(line["encode_ms"], 0.75);
  EXPECT_EQ(line["send_ms"], 0.25);
  EXPECT_EQ(line["seal_ms"], 0.375);
  EXPECT_EQ(line["manifest_publish_ms"], 0.5);
  EXPECT_FALSE(line.contains("stage_ms"));
}

TEST(Metrics, ARolloutsLineHasEveryTime) {
  UpdateReport report;
  report.from_version = 4;
  report.version = 7;
  report.versions = 3;
  report.fetch_ms = 1;
  report.stage_ms = 2;
  report.pause_ms = 3;
  report.apply_ms = 4;
  report.resume_ms = 5;
  const auto line = nlohmann::json::parse(json_line(to_json(record_of(report, 1))));
  EXPECT_EQ(line["role"], "rollout");
  EXPECT_GT(line["monotonic_ms"], 0.0);
  EXPECT_EQ(line["base_version"], 4);
  EXPECT_EQ(line["versions"], 3);
  double time = 1;
  for (const char* key : {"fetch_ms", "stage_ms", "pause_ms", "apply_ms", "resume_ms"}) {
    EXPECT_EQ(line[key], time++) << key;
  }
  EXPECT_FALSE(line.contains("process_ms"));
}

TEST(Metrics, ARolloutsTimeIsThatOfTheCommit) {
  UpdateReport report;
  const RecordOrigin now = record_of(report, 1).origin;
  report.done = std::chrono::steady_clock::now() - std::chrono::hours(1);
  const RecordOrigin then = record_of(report, 1).origin;
  EXPECT_NEAR(now.monotonic_ms - then.monotonic_ms, 3.6e6, 6e4);
  EXPECT_NEAR(static_cast<double>(*unix_ms(now.time) - *unix_ms(then.time)), 3.6e6, 6e4);
  EXPECT_EQ(then.role, "rollout");
  EXPECT_EQ(then.rank, 1U);
}

TEST(Metrics, ARecordsTimeIsReadBack) {
  EXPECT_EQ(unix_ms("2026-01-31T12:00:00.250Z"), 1'769'860'800'250);
  EXPECT_EQ(unix_ms("1970-01-01T00:00:00.007Z"), 7);
  for (const char* wrong : {"", "2026-01-31", "2026-01-31T12:00:00Z", "yesterday"}) {
    EXPECT_FALSE(unix_ms(wrong)) << wrong;
  }
  const std::int64_t now = *unix_ms(record_origin("trainer", 0).time);
  EXPECT_NEAR(static_cast<double>(now), static_cast<double>(std::time(nullptr)) * 1e3, 5e3);
}

TEST(Metrics, SpansGoToTheConfiguredFile) {
  const testing::TempDir dir;
  auto none = open_spans("", "trainer", 3);
  ASSERT_TRUE(none.ok() && *none == nullptr);
  auto spans = open_spans(dir.file("{role}_{rank}.jsonl"), "trainer", 3);
  ASSERT_TRUE(spans.ok()) << spans.status().to_string();
  (*spans)->add(record_of(published(1), 3));
  EXPECT_EQ(lines_of(dir.file("trainer_3.jsonl")).size(), 1U);
}

TEST(Metrics, AFullDiskIsReportedOnceAndStopsNothing) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full";
  auto writer = MetricsWriter::open("/dev/full", "trainer", 0);
  ASSERT_TRUE(writer.ok());
  const Status first = (*writer)->write(to_json(record_of(published(1), 0)));
  EXPECT_EQ(first.code(), StatusCode::kNoSpace);
  EXPECT_NE(first.message().find("the job goes on"), std::string_view::npos);
  EXPECT_TRUE((*writer)->write(to_json(record_of(published(2), 0))).ok());
}

TEST(Metrics, OpeningAPipeDoesNotWaitForItsReader) {
  const testing::TempDir dir;
  const std::string path = dir.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const auto read = [&] { return Descriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK)); };
  auto late = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return read();
  });
  ASSERT_FALSE(MetricsWriter::open(path, "trainer", 0).ok());
  const Descriptor reader = late.get();
  auto writer = MetricsWriter::open(path, "trainer", 0);
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  Status lost;
  for (std::uint64_t version = 1; version < 10000 && lost.ok(); ++version) {
    lost = (*writer)->write(to_json(record_of(published(version), 0)));
  }
  EXPECT_NE(lost.message().find("the job goes on"), std::string_view::npos) << lost.to_string();
}

TEST(Metrics, APathThatCannotBeIsAnErrorAtTheStart) {
  const testing::TempDir dir;
  const auto writer = MetricsWriter::open(dir.file("none/metrics.jsonl"), "trainer", 0);
  ASSERT_FALSE(writer.ok());
  EXPECT_EQ(writer.status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace driftless
