// SPDX-License-Identifier: Apache-2.0
#include "formats/records.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "core/host_name.h"
#include "support/checkout_paths.h"

namespace driftless {
namespace {

VersionRecord full_record() {
  VersionRecord record;
  record.origin = record_origin("trainer", 3);
  record.published.emplace();
  record.captured.emplace();
  record.received.emplace();
  record.delivered.emplace();
  return record;
}

EngineRecord failed_update() {
  EngineRecord record;
  record.origin = record_origin("agent", 0);
  record.engine = "http://host:1";
  record.status = Status(StatusCode::kIo, "gone");
  return record;
}

TEST(Records, NameProcessHostAndTime) {
  const auto json = to_json(full_record());
  EXPECT_EQ(json["role"], "trainer");
  EXPECT_EQ(json["rank"], 3);
  EXPECT_EQ(json["host"], host_name());
  EXPECT_TRUE(std::regex_match(json["time"].get<std::string>(),
                               std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")))
      << json["time"];
  EXPECT_GT(json["monotonic_ms"], 0.0);
}

TEST(Records, HaveTheKeysOfTheirProcessOnly) {
  VersionRecord record;
  record.received.emplace();
  const auto json = to_json(record);
  EXPECT_TRUE(json.contains("pause_ms"));
  EXPECT_FALSE(json.contains("density"));
  EXPECT_FALSE(json.contains("captured_bytes"));
  EXPECT_FALSE(json.contains("plain_bytes"));
}

TEST(Records, AFailedUpdateHasItsReason) {
  const auto json = to_json(failed_update());
  EXPECT_EQ(json["status"], "io");
  EXPECT_EQ(json["error"], "gone");
  EngineRecord good = failed_update();
  good.status = {};
  EXPECT_FALSE(to_json(good).contains("error"));
}

TEST(Records, EveryViewNamesProcessRunAndDigest) {
  const EngineRecord engine{.origin = record_origin("agent", 2),
                            .run = Hash128{1, 2},
                            .engine = "http://a",
                            .kind = "vllm",
                            .version = 7,
                            .digest = std::string(32, 'd'),
                            .proven = "workers"};
  const EndRecord end{engine.origin, engine.run, "agent", "one", 7, engine.digest};
  for (const nlohmann::ordered_json& json : {to_json(engine), to_json(end)}) {
    EXPECT_EQ(json["role"], "agent");
    EXPECT_EQ(json["rank"], 2);
    EXPECT_FALSE(json["host"].get<std::string>().empty());
    EXPECT_TRUE(json["time"].get<std::string>().ends_with('Z'));
    EXPECT_EQ(json["run"], to_hex(engine.run));
    EXPECT_EQ(json["digest"], engine.digest);
    EXPECT_EQ(json["version"], 7);
  }
  EXPECT_EQ(to_json(engine)["kind"], "vllm");
  EXPECT_EQ(to_json(engine)["proven"], "workers");
  EXPECT_EQ(to_json(end)["id"], "one");
}

TEST(Records, EveryKeyIsOnThePage) {
  std::ifstream file(std::string(testing::test_data()) + "/../docs/operate/metrics.md");
  std::stringstream page;
  page << file.rdbuf();
  ASSERT_FALSE(page.str().empty());
  for (const auto& record :
       {to_json(full_record()), to_json(failed_update()),
        to_json(EndRecord{record_origin("agent", 0), {}, "agent", "one", 7, ""})}) {
    for (const auto& [key, value] : record.items()) {
      EXPECT_NE(page.str().find("`" + key + "`"), std::string::npos) << key;
    }
  }
}

}  // namespace
}  // namespace driftless
