// SPDX-License-Identifier: Apache-2.0
// driftless.h as a program uses it: following a run.
#include "support/c_abi_fixture.h"

namespace driftless::testing {
namespace {

// --- the library

TEST(CAbiLibraryTest, ReportsItsVersion) {
  EXPECT_EQ(driftless_abi(), static_cast<uint32_t>(DRIFTLESS_ABI));
  EXPECT_GE(std::string(driftless_version()).size(), 5U);
  char* text = nullptr;
  ASSERT_EQ(driftless_info_json(&text, nullptr), DRIFTLESS_OK);
  const auto info = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(info["version"], driftless_version());
  EXPECT_EQ(info["abi"], DRIFTLESS_ABI);
  bool files = false;
  for (const auto& backend : info["backends"]) {
    files = files || (backend["name"] == "shared_fs" && backend["built"] == true);
  }
  EXPECT_TRUE(files);
  EXPECT_EQ(driftless_info_json(nullptr, nullptr), DRIFTLESS_INVALID_ARGUMENT);
}

TEST(CAbiLibraryTest, CodesHaveTheNamesOfTheLibraryAndANextAction) {
  for (int code = 0; code <= DRIFTLESS_INTERNAL; ++code) {
    EXPECT_EQ(driftless_code_name(code), to_string(static_cast<StatusCode>(code)));
    EXPECT_EQ(std::string(driftless_code_next_action(code)).empty(), code == DRIFTLESS_OK);
  }
  for (const int code : {-1, DRIFTLESS_INTERNAL + 1, 1 << 30}) {
    EXPECT_STREQ(driftless_code_name(code), "unknown");
    EXPECT_STRNE(driftless_code_next_action(code), "");
  }
}

TEST(CAbiLibraryTest, NoErrorIsOk) {
  EXPECT_EQ(driftless_error_code(nullptr), DRIFTLESS_OK);
  EXPECT_STREQ(driftless_error_name(nullptr), "ok");
  EXPECT_STREQ(driftless_error_message(nullptr), "");
  EXPECT_STREQ(driftless_error_next_action(nullptr), "");
  driftless_error_free(nullptr);
  driftless_free(nullptr);
}

TEST_F(CAbiTest, AnErrorIsReplacedByTheNextAndGoneAfterSuccess) {
  EXPECT_EQ(driftless_rollback(nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_error_code(error_.get()), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_STREQ(driftless_error_name(error_.get()), "invalid_argument");
  EXPECT_EQ(error_.message(), "receiver is NULL");
  EXPECT_STREQ(driftless_error_next_action(error_.get()), "Fix the call or the option.");
  EXPECT_EQ(open({"road.dirr=x"}), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.contains("road.dirr")) << error_.message();
  EXPECT_EQ(open(), DRIFTLESS_OK);
  EXPECT_EQ(error_.get(), nullptr);
}

// --- following

TEST_F(CAbiTest, FollowsVersionByVersion) {
  trainer_.open();
  follow();
  int32_t newer = -1, staged = -1;
  uint64_t newest = 99;
  EXPECT_EQ(driftless_poll(receiver_, 0, &newer, &newest, error_), DRIFTLESS_OK);
  EXPECT_EQ(newer, 0);
  EXPECT_EQ(newest, 0U);
  EXPECT_EQ(driftless_stage(receiver_, 0, &staged, error_), DRIFTLESS_OK);
  EXPECT_EQ(staged, 0);
  for (uint64_t version = 1; version <= 3; ++version) {
    trainer_.step();
    EXPECT_EQ(driftless_poll(receiver_, 2000, &newer, &newest, error_), DRIFTLESS_OK);
    EXPECT_EQ(newer, 1);
    EXPECT_EQ(newest, version);
    EXPECT_EQ(state().staged, 0);
    stage();
    EXPECT_EQ(state().staged, 1);
    EXPECT_EQ(state().version, version - 1);
    auto report = sized<driftless_report>();
    ASSERT_EQ(driftless_commit(receiver_, &report, error_), DRIFTLESS_OK) << error_.message();
    EXPECT_TRUE(same(held_, trainer_.weights));
    EXPECT_EQ(report.from_version, version - 1);
    EXPECT_EQ(report.version, version);
    EXPECT_EQ(report.versions, 1U);
    EXPECT_EQ(report.digest, trainer_.digest());
    EXPECT_GT(report.changed_units, 0U);
    EXPECT_GE(report.wire_bytes, report.delta_bytes);
    EXPECT_EQ(engine_.pauses, static_cast<int>(version));
    EXPECT_EQ(engine_.resumes, static_cast<int>(version));
  }
  EXPECT_EQ(driftless_keep_alive(receiver_, error_), DRIFTLESS_OK) << error_.message();
}

TEST_F(CAbiTest, ReportsWhatTheTensorsHold) {
  trainer_.open();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  std::array<char, 33> text{};
  uint64_t version = 77;
  EXPECT_EQ(driftless_weights_version(receiver_, &version, error_), DRIFTLESS_INCOMPLETE);
  EXPECT_EQ(driftless_weights_digest(receiver_, text.data(), error_), DRIFTLESS_INCOMPLETE);
  EXPECT_EQ(driftless_run_id(receiver_, text.data(), error_), DRIFTLESS_INCOMPLETE);
  EXPECT_EQ(state().started, 0);
  EXPECT_EQ(version, 77U) << "written although it failed";
  add_all();
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK);
  trainer_.step();
  update();
  EXPECT_EQ(driftless_weights_version(receiver_, &version, error_), DRIFTLESS_OK);
  EXPECT_EQ(version, 1U);
  EXPECT_EQ(driftless_weights_digest(receiver_, text.data(), error_), DRIFTLESS_OK);
  EXPECT_EQ(text.data(), trainer_.digest());
  EXPECT_EQ(driftless_run_id(receiver_, text.data(), error_), DRIFTLESS_OK);
  EXPECT_EQ(text.data(), trainer_.run());
  EXPECT_EQ(state().digest, trainer_.digest());
  EXPECT_EQ(state().run, trainer_.run());
  EXPECT_EQ(state().valid, 1);
  EXPECT_EQ(state().partial, 0);
  for (const auto call : {&driftless_weights_digest, &driftless_run_id}) {
    EXPECT_EQ(call(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  }
  EXPECT_EQ(driftless_weights_version(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, FromNothingAnAnchorIsTaken) {
  trainer_.open(true);
  trainer_.step();
  held_ = changed_weights(held_, 5, 0.5, "none");
  follow(DRIFTLESS_HOLDS_NOTHING);
  EXPECT_EQ(state().valid, 0);
  int32_t newer = 0;
  EXPECT_EQ(driftless_poll(receiver_, 0, &newer, nullptr, error_), DRIFTLESS_OK);
  EXPECT_EQ(newer, 1);
  update();
  auto report = sized<driftless_report>();
  ASSERT_EQ(driftless_last_report(receiver_, &report, error_), DRIFTLESS_OK);
  EXPECT_EQ(report.anchor, 1);
  if (state().version == 0) update();
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, ContinuesFromAVersionOfTheRun) {
  trainer_.open();
  trainer_.step();
  held_ = trainer_.weights;
  trainer_.step();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  add_all();
  EXPECT_EQ(driftless_start_at(receiver_, "not a run", 1, 2000, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_start_at(receiver_, std::string(32, 'a').c_str(), 1, 2000, error_),
            DRIFTLESS_WRONG_RUN);
  EXPECT_EQ(driftless_start_at(receiver_, nullptr, ~uint64_t{0}, 2000, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_start_at(receiver_, trainer_.run().c_str(), 2, 2000, error_),
            DRIFTLESS_WRONG_BASE)
      << "they are version 1";
  ASSERT_EQ(driftless_start_at(receiver_, trainer_.run().c_str(), 1, 2000, error_), DRIFTLESS_OK)
      << error_.message();
  EXPECT_EQ(state().proven, 1U);
  update();
  EXPECT_EQ(state().version, 2U);
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, TensorsMayBeAbsent) {
  trainer_.open();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  bool first = true;
  for (auto& [name, tensor] : held_) {
    driftless_tensor registered = describe(name, tensor);
    if (first) {
      registered.place = DRIFTLESS_ABSENT;
      EXPECT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_INVALID_ARGUMENT)
          << "data of a tensor that is not there";
      registered.data = nullptr;
    }
    ASSERT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK) << error_.message();
    first = false;
  }
  ASSERT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_OK);
  trainer_.step();
  update();
  EXPECT_EQ(state().partial, 1);
  const Weights expected = trainer_.weights;
  EXPECT_NE(held_.begin()->second.bytes, expected.begin()->second.bytes);
  held_.begin()->second.bytes = expected.begin()->second.bytes;
  EXPECT_TRUE(same(held_, expected));
}

TEST_F(CAbiTest, WithAbsentTensorsAnotherBaseIsRefusedToo) {
  trainer_.open();
  ASSERT_EQ(open(), DRIFTLESS_OK);
  held_.rbegin()->second.bytes.back() ^= std::byte{1};
  for (auto& [name, tensor] : held_) {
    driftless_tensor registered = describe(name, tensor);
    if (name == held_.begin()->first) {
      registered.place = DRIFTLESS_ABSENT;
      registered.data = nullptr;
    }
    ASSERT_EQ(driftless_register(receiver_, &registered, error_), DRIFTLESS_OK) << error_.message();
  }
  EXPECT_EQ(driftless_start(receiver_, DRIFTLESS_HOLDS_BASE, 2000, error_), DRIFTLESS_WRONG_BASE);
  EXPECT_TRUE(error_.contains(held_.rbegin()->first.c_str())) << error_.message();
}

TEST_F(CAbiTest, SeesTheEndOfTheRun) {
  trainer_.open();
  follow();
  auto end = sized<driftless_end>();
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK);
  EXPECT_EQ(end.ended, 0);
  trainer_.step();
  trainer_.end();
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK);
  EXPECT_EQ(end.ended, 1);
  EXPECT_EQ(end.reached, 0);
  EXPECT_EQ(end.version, 1U);
  EXPECT_EQ(end.digest, trainer_.digest());
  update();
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK);
  EXPECT_EQ(end.reached, 1);
  std::ofstream(road_ + "/closed.json") << "{\"run\": ";  // not complete yet
  EXPECT_EQ(driftless_look_for_end(receiver_, &end, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_EQ(end.ended, 0);
}

TEST_F(CAbiTest, MetricsAndReportsAddUp) {
  trainer_.open();
  follow();
  auto report = sized<driftless_report>();
  char* text = nullptr;
  EXPECT_EQ(driftless_last_report(receiver_, &report, error_), DRIFTLESS_NOT_FOUND);
  EXPECT_EQ(driftless_last_report_json(receiver_, &text, error_), DRIFTLESS_NOT_FOUND);
  EXPECT_EQ(text, nullptr);
  trainer_.step();
  update();
  trainer_.step();
  trainer_.step();
  update();
  ASSERT_EQ(driftless_last_report(receiver_, &report, error_), DRIFTLESS_OK);
  EXPECT_EQ(report.from_version, 1U);
  EXPECT_EQ(report.version, 3U);
  EXPECT_EQ(report.versions, 2U);
  auto metrics = sized<driftless_metrics>();
  ASSERT_EQ(driftless_get_metrics(receiver_, &metrics, error_), DRIFTLESS_OK);
  EXPECT_EQ(metrics.commits, 2U);
  EXPECT_EQ(metrics.versions, 3U);
  EXPECT_EQ(metrics.version, 3U);
  EXPECT_EQ(metrics.newest, 3U);
  EXPECT_EQ(metrics.anchors + metrics.rollbacks + metrics.unheard, 0U);
  EXPECT_GT(metrics.wire_bytes, report.wire_bytes);
  EXPECT_GT(metrics.longest_pause_ms, 0.0);
  ASSERT_EQ(driftless_metrics_json(receiver_, &text, error_), DRIFTLESS_OK);
  const auto json = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(json["commits"], 2);
  EXPECT_EQ(json["wire_bytes"], metrics.wire_bytes);
  ASSERT_EQ(driftless_last_report_json(receiver_, &text, error_), DRIFTLESS_OK);
  const auto last = nlohmann::json::parse(take_text(text));
  EXPECT_EQ(last["version"], 3);
  EXPECT_EQ(last["digest"], trainer_.digest());
  EXPECT_TRUE(last["notes"].is_array() && last["notes"].empty());
  EXPECT_EQ(driftless_metrics_json(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_last_report_json(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
}

TEST_F(CAbiTest, RollbackDropsWhatIsStagedOrTakesTheCommitBack) {
  trainer_.open();
  follow();
  EXPECT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_INVALID_ARGUMENT);
  const Weights base = held_;
  trainer_.step();
  stage();
  EXPECT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_OK);
  EXPECT_EQ(state().staged, 0);
  EXPECT_EQ(engine_.pauses, 0) << "nothing was written";
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  update();
  EXPECT_TRUE(same(held_, trainer_.weights));
  EXPECT_EQ(driftless_rollback(receiver_, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_TRUE(same(held_, base));
  EXPECT_EQ(state().version, 0U);
  EXPECT_EQ(engine_.pauses, 2);
  EXPECT_EQ(engine_.resumes, 2);
  auto metrics = sized<driftless_metrics>();
  ASSERT_EQ(driftless_get_metrics(receiver_, &metrics, error_), DRIFTLESS_OK);
  EXPECT_EQ(metrics.rollbacks, 2U);
  EXPECT_EQ(metrics.version, 0U);
  update();
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, AFailedPauseLeavesItStaged) {
  trainer_.open();
  follow();
  const Weights base = held_;
  trainer_.step();
  stage();
  engine_.pause_answer = DRIFTLESS_DEADLINE_EXCEEDED;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_DEADLINE_EXCEEDED);
  EXPECT_TRUE(error_.contains("pause")) << error_.message();
  engine_.pause_answer = -5;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_BUSY);
  EXPECT_TRUE(error_.contains("-5")) << error_.message();
  engine_.during_pause = [] { throw std::runtime_error("thrown through C"); };
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_INTERNAL);
  EXPECT_TRUE(same(held_, base));
  EXPECT_EQ(engine_.resumes, 0);
  EXPECT_EQ(state().staged, 1);
  engine_.during_pause = nullptr;
  engine_.pause_answer = 0;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiTest, AFailedResumeComesAfterACommitThatHolds) {
  trainer_.open();
  follow();
  trainer_.step();
  stage();
  engine_.resume_answer = DRIFTLESS_IO;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_IO);
  EXPECT_TRUE(error_.contains("version 1 is committed")) << error_.message();
  EXPECT_TRUE(same(held_, trainer_.weights));
  EXPECT_EQ(state().version, 1U);
  EXPECT_EQ(state().staged, 0);
  auto metrics = sized<driftless_metrics>();
  ASSERT_EQ(driftless_get_metrics(receiver_, &metrics, error_), DRIFTLESS_OK);
  EXPECT_EQ(metrics.commits, 1U);
  EXPECT_EQ(metrics.commit_failures, 1U);
}

TEST_F(CAbiTest, AForeignWriteIsFoundAndNoVersionIsHeld) {
  trainer_.open();
  follow();
  trainer_.step();
  stage();
  // Changes every byte, so some of them are bytes that the next version changes.
  for (auto& [name, tensor] : held_) {
    for (std::byte& byte : tensor.bytes) byte ^= std::byte{0x55};
  }
  const Weights written = held_;
  EXPECT_EQ(driftless_commit(receiver_, nullptr, error_), DRIFTLESS_MISMATCH);
  EXPECT_TRUE(same(held_, written));
  EXPECT_EQ(engine_.resumes, 0) << "with weights that are no version";
  EXPECT_EQ(state().valid, 0);
  EXPECT_EQ(state().staged, 0);
}

}  // namespace
}  // namespace driftless::testing
