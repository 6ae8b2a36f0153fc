// SPDX-License-Identifier: Apache-2.0
#include "formats/record_reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace driftless {
namespace {

// What a record says, said again by what was read of it.
template <typename Record>
void expect_same(const Record& record, Result<Record> (*read)(const Json&, std::string_view)) {
  const std::string text = to_json(record).dump();
  const Result<Record> back = read(Json::parse(text), "line");
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(to_json(*back).dump(), text);
}

VersionRecord version() {
  VersionRecord record;
  record.origin = record_origin("trainer", 3);
  record.run = {1, 2};
  record.version = 7;
  record.base_version = 6;
  record.anchor = true;
  record.changed_units = 5;
  record.full_bytes = 4;
  record.delta_bytes = 3;
  record.wire_bytes = 2;
  return record;
}

TEST(RecordReader, ReadsWhatEachProcessWrites) {
  VersionRecord record = version();
  record.most_changed = {{"a", 1, 2}, {"b", 0, 9}};
  record.published = {Encoding::kCompact, 0.5, 1, 2, 3, 4, 5, 6, 7};
  record.captured = {1, 2, 3, 4, 5};
  expect_same(record, read_version_record);
  record = version();
  record.received = {1, 2, {3, 4, 5, 6}, "tcp"};
  expect_same(record, read_version_record);
  record = version();
  record.delivered = {1, 2, 3, 4, 5, "nixl"};
  expect_same(record, read_version_record);
  EngineRecord engine;
  engine.origin = record_origin("agent", 0);
  engine.engine = "http://host:1";
  engine.kind = "sglang";
  engine.proven = "files";
  engine.version = engine.goal = 4;
  engine.commit = {1, 2, 3, 4};
  expect_same(engine, read_engine_record);
  engine.status = Status(StatusCode::kDeadlineExceeded, "late");
  engine.reachable = false;
  engine.reload = true;
  expect_same(engine, read_engine_record);
  expect_same(RolloutRecord{"r", "run", 1, "ab", true, 2, true, true, 3, 4}, read_rollout_record);
  expect_same(EndRecord{record_origin("rollout", 1), {}, "rollout", "id", 3, "cd"},
              read_end_record);
}

TEST(RecordReader, RefusesValuesOfAnotherTypeAndNamesThem) {
  const Json good = Json::parse(to_json(version()).dump());
  const std::pair<const char*, Json> wrong[] = {{"version", -1},
                                                {"version", "7"},
                                                {"version", ~std::uint64_t{0}},
                                                {"monotonic_ms", -0.5},
                                                {"monotonic_ms", 1e300},
                                                {"rank", std::uint64_t{1} << 40},
                                                {"anchor", 1},
                                                {"host", 3},
                                                {"digest", "xyz"},
                                                {"run", "0"},
                                                {"encoding", "morse"},
                                                {"most_changed", Json::object()},
                                                {"monotonic_ms", "no"},
                                                {"role", Json::array()}};
  for (const auto& [key, value] : wrong) {
    Json json = good;
    json[key] = value;
    const Status status = read_version_record(json, "line 3").status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << key;
    EXPECT_NE(status.message().find(concat("line 3: ", key)), std::string::npos)
        << status.message();
  }
  EXPECT_FALSE(read_engine_record(Json::array(), "line").ok());
  Json more = good;
  more["most_changed"] = std::vector<Json>(kMostChangedTensors + 1, Json::object());
  EXPECT_FALSE(read_version_record(more, "line").ok());
}

TEST(RecordReader, WhatItDoesNotKnowIsPassedOver) {
  const auto engine = read_engine_record(
      Json::parse(R"({"kind": "triton", "proven": "luck", "role": "x", "new": [1]})"), "line");
  ASSERT_TRUE(engine.ok());
  EXPECT_TRUE(engine->kind.empty() && engine->proven.empty() && engine->origin.role.empty());
}

}  // namespace
}  // namespace driftless
