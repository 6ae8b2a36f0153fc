// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/span_writer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "support/records.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using namespace testing;
using nlohmann::json;

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kEnd = 1769860800250 * kMs;

class Spans : public ::testing::Test {
 protected:
  // The lines that the records make.
  template <typename... Records>
  std::vector<json> lines_of(const Records&... records) {
    auto writer = open_span_writer(dir.file("spans.jsonl"));
    EXPECT_TRUE(writer.ok()) << writer.status().to_string();
    ((*writer)->add(records), ...);
    std::ifstream in(dir.file("spans.jsonl"));
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    EXPECT_EQ(lines.size(), sizeof...(records));
    return lines;
  }
  template <typename Record>
  json spans_of(const Record& record) {
    return lines_of(record).back()["resourceSpans"][0]["scopeSpans"][0]["spans"];
  }
  static json span(const json& spans, const std::string& name) {
    for (const json& each : spans) {
      if (each["name"] == name) return each;
    }
    ADD_FAILURE() << "no span " << name;
    return {};
  }
  // Milliseconds before the end of the record.
  static std::pair<double, double> when(const json& spans, const std::string& name) {
    const json found = span(spans, name);
    const auto before = [&](const char* key) {
      return static_cast<double>(kEnd - std::stoull(found[key].get<std::string>())) / kMs;
    };
    return {before("startTimeUnixNano"), before("endTimeUnixNano")};
  }
  static json attribute(const json& span, const std::string& key) {
    for (const json& each : span["attributes"]) {
      if (each["key"] == key) return *each["value"].begin();
    }
    return {};
  }

  TempDir dir;
};
using Times = std::pair<double, double>;

TEST_F(Spans, APublishersStagesBeginWithThePublication) {
  const VersionRecord record = published_version(7);
  const json spans = spans_of(record);
  ASSERT_EQ(spans.size(), 5U);
  EXPECT_EQ(when(spans, "publish version 7"), Times(200, 0));
  EXPECT_EQ(when(spans, "compare"), Times(200, 80));
  EXPECT_EQ(when(spans, "encode"), Times(200, 140));
  EXPECT_EQ(when(spans, "send"), Times(200, 170));
  EXPECT_EQ(when(spans, "seal"), Times(40, 0));
  const json all = span(spans, "publish version 7");
  EXPECT_FALSE(all.contains("parentSpanId"));
  EXPECT_FALSE(all.contains("status"));
  EXPECT_EQ(all["traceId"], trace_id(record.run, 7));
  EXPECT_EQ(all["spanId"], publisher_span_id(record.run, 7));
  EXPECT_EQ(span(spans, "compare")["parentSpanId"], all["spanId"]);
  EXPECT_EQ(attribute(all, "driftless.run"), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ(attribute(all, "driftless.version"), "7");
  EXPECT_EQ(attribute(all, "driftless.base_version"), "6");
  EXPECT_EQ(attribute(all, "driftless.encoding"), "deltas");
  EXPECT_EQ(attribute(all, "driftless.changed_units"), "2500");
  EXPECT_EQ(attribute(all, "driftless.wire_bytes"), "7000");
  EXPECT_EQ(attribute(all, "driftless.density"), 0.025);
}

TEST_F(Spans, TheResourceNamesTheProcess) {
  const json resource = lines_of(published_version(1)).back()["resourceSpans"][0]["resource"];
  EXPECT_EQ(attribute(resource, "service.name"), "driftless");
  EXPECT_EQ(attribute(resource, "host.name"), "host-7");
  EXPECT_EQ(attribute(resource, "driftless.role"), "trainer");
  EXPECT_EQ(attribute(resource, "driftless.rank"), "0");
}

TEST_F(Spans, AReceiversStagesFollowEachOther) {
  const VersionRecord record = received_version(7);
  const json spans = spans_of(record);
  ASSERT_EQ(spans.size(), 7U);
  EXPECT_EQ(when(spans, "follow version 7"), Times(126, 0));
  EXPECT_EQ(when(spans, "fetch"), Times(126, 26));
  EXPECT_EQ(when(spans, "stage"), Times(26, 6));
  EXPECT_EQ(when(spans, "commit"), Times(6, 0));
  EXPECT_EQ(when(spans, "pause"), Times(6, 5));
  EXPECT_EQ(when(spans, "apply"), Times(5, 3));
  EXPECT_EQ(when(spans, "resume"), Times(3, 0));
  // One trace with the publisher, whose span is the parent.
  EXPECT_EQ(span(spans, "follow version 7")["traceId"], trace_id(record.run, 7));
  EXPECT_EQ(span(spans, "follow version 7")["parentSpanId"], publisher_span_id(record.run, 7));
}

TEST_F(Spans, NoStageBeginsBeforeItsParentByRounding) {
  EngineRecord record = engine_update("http://a", 7);
  record.commit = {
      .stage_ms = 0.176355, .pause_ms = 0.895818, .apply_ms = 2.90371, .resume_ms = 2.626603};
  const json spans = spans_of(record);
  EXPECT_EQ(span(spans, "stage")["startTimeUnixNano"],
            span(spans, "engine update")["startTimeUnixNano"]);
}

TEST_F(Spans, AnAgentFetchesWhileItHandsOver) {
  const json spans = spans_of(delivered_version(7));
  ASSERT_EQ(spans.size(), 3U);  // nothing was applied
  EXPECT_EQ(when(spans, "follow version 7"), Times(100, 0));
  EXPECT_EQ(when(spans, "fetch"), Times(100, 20));
  EXPECT_EQ(when(spans, "process"), Times(100, 0));
}

TEST_F(Spans, AFailedUpdateIsAnError) {
  const json good = span(spans_of(engine_update("http://a", 7)), "engine update");
  EXPECT_EQ(attribute(good, "driftless.engine"), "http://a");
  EXPECT_FALSE(good.contains("status"));
  std::ofstream(dir.file("spans.jsonl"), std::ios::trunc).close();
  const json bad = span(spans_of(failed_update("http://a", 7)), "engine update");
  EXPECT_EQ(bad["status"]["code"], 2);
  EXPECT_EQ(bad["status"]["message"], "mismatch: worker 1 reported another digest");
  EXPECT_EQ(bad["traceId"], good["traceId"]);
}

TEST_F(Spans, IdsAreOfTheirFormAndUnique) {
  std::set<std::string> ids;
  for (int process = 0; process < 3; ++process) {
    std::ofstream(dir.file("spans.jsonl"), std::ios::trunc).close();
    for (const json& line : lines_of(received_version(1), received_version(2),
                                     engine_update("http://a", 1), published_version(3))) {
      for (const json& span : line["resourceSpans"][0]["scopeSpans"][0]["spans"]) {
        const std::string id = span["spanId"];
        EXPECT_EQ(id.size(), 16U);
        EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
        EXPECT_EQ(span["traceId"].get<std::string>().size(), 32U);
        if (!span["name"].get<std::string>().starts_with("publish")) {
          EXPECT_TRUE(ids.insert(id).second) << id;
        }
      }
    }
  }
  EXPECT_NE(trace_id({1, 2}, 3), trace_id({1, 2}, 4));
  EXPECT_NE(trace_id({1, 2}, 3), trace_id({1, 3}, 3));
}

TEST_F(Spans, OtherRanksOfATrainerFollowTheLeader) {
  VersionRecord record = published_version(7);
  record.origin.rank = 1;
  const json all = span(spans_of(record), "publish version 7");
  EXPECT_EQ(all["parentSpanId"], publisher_span_id(record.run, 7));
  EXPECT_NE(all["spanId"], publisher_span_id(record.run, 7));
}

TEST_F(Spans, WhatCannotBeWrittenIsReportedOnceAndAnyTextIsJson) {
  EXPECT_EQ(span(spans_of(engine_update("http://\"\n\xff/", 7)), "engine update")["kind"], 1);
  std::vector<std::string> lost;
  auto writer = open_span_writer("/dev/full");
  if (!writer.ok()) GTEST_SKIP() << writer.status().to_string();
  for (std::uint64_t version = 1; version < 5; ++version) {
    (*writer)->add(published_version(version));
    const Status trouble = (*writer)->take_trouble();
    if (!trouble.ok()) lost.emplace_back(trouble.message());
  }
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_NE(lost[0].find("monitor.spans_file: /dev/full: lines are lost from version 1"),
            std::string::npos)
      << lost[0];
}

}  // namespace
}  // namespace driftless
