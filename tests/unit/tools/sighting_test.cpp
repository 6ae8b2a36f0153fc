// SPDX-License-Identifier: Apache-2.0
#include "tools/status/sighting.h"

#include <gtest/gtest.h>

#include "core/utc_time.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;

const Moment kNow = *parse_utc("2026-11-18T20:00:00Z");

// A sighting of versions with these ages.
Sighting with_versions(std::initializer_list<std::chrono::milliseconds> ages) {
  Sighting sighting;
  for (const auto age : ages) {
    VersionRecord& version = sighting.status.versions.emplace_back();
    version.version = ++sighting.status.version;
    version.origin.time = utc_text(kNow - age);
  }
  return sighting;
}

TrainerState judged(Sighting sighting, bool gone = false) {
  judge_by_age(sighting, kNow, gone);
  return sighting.status.trainer;
}

TEST(Sighting, NoAgeProvesThatATrainerLives) {
  Sighting sighting = with_versions({40s, 26s, 12s});
  judge_by_age(sighting, kNow);
  EXPECT_EQ(sighting.status.trainer, TrainerState::kUnknown);
  EXPECT_EQ(sighting.why, "last version 12 s ago, usually one every 14 s");
  EXPECT_EQ(sighting.status.trainer_seen, "2026-11-18T19:59:48.000Z");
  EXPECT_EQ(judged({}), TrainerState::kUnknown);
}

TEST(Sighting, SilenceIsTenTimesTheUsualTime) {
  EXPECT_EQ(judged(with_versions({220s, 210s, 200s})), TrainerState::kSilent);
  EXPECT_EQ(judged(with_versions({110s, 100s, 90s})), TrainerState::kUnknown);
  EXPECT_EQ(judged(with_versions({32s, 31s, 30s})), TrainerState::kUnknown) << "a minute at least";
  EXPECT_EQ(judged(with_versions({100h, 99h})), TrainerState::kUnknown) << "nothing is usual";
  EXPECT_EQ(judged(with_versions({32s, 31s, 30s}), true), TrainerState::kSilent) << "it is gone";
  EXPECT_EQ(judged(with_versions({99s}), true), TrainerState::kSilent);
  EXPECT_EQ(judged(with_versions({4s}), true), TrainerState::kUnknown);
}

TEST(Sighting, AClockThatIsAheadJudgesNothing) {
  Sighting sighting = with_versions({30s, 20s, -600s});
  judge_by_age(sighting, kNow, true);
  EXPECT_EQ(sighting.status.trainer, TrainerState::kUnknown);
  EXPECT_NE(sighting.why.find("clocks differ"), std::string::npos) << sighting.why;
}

TEST(Sighting, ALagOfOneIsUsualUnlessTheRunHasEnded) {
  Sighting sighting = with_versions({3s, 2s, 1s});
  RolloutRecord rollout{.id = "r", .run = "", .version = 2, .digest = "ab", .proven = true};
  sighting.status.rollouts = {rollout};
  EXPECT_TRUE(problems(sighting).empty());
  sighting.status.trainer = TrainerState::kEnded;
  EXPECT_EQ(problems(sighting), std::vector<std::string>{"rollout r: 1 version behind"});
  sighting.status.rollouts[0].left = true;
  EXPECT_TRUE(problems(sighting).empty());
}

TEST(Sighting, WhatCannotBeProvenIsNoFault) {
  Sighting sighting = with_versions({1s});
  sighting.status.rollouts = {
      {.id = "r", .run = "", .version = 1, .digest = "ab", .proven = false, .unproven = 2}};
  EngineRecord record;
  record.version = 1;
  sighting.status.engines = {record};
  EXPECT_TRUE(problems(sighting).empty());
  sighting.status.rollouts[0].unproven = 0;
  sighting.status.engines[0].kind = "vllm";
  EXPECT_EQ(problems(sighting).size(), 2U);
}

TEST(Sighting, TimesAreShort) {
  EXPECT_EQ(human_time(999ms), "999 ms");
  EXPECT_EQ(human_time(90s), "90 s");
  EXPECT_EQ(human_time(10min), "10 min");
  EXPECT_EQ(human_time(5h), "5 h");
  EXPECT_EQ(human_time(72h), "3 days");
}

}  // namespace
}  // namespace driftless
