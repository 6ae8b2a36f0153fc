// SPDX-License-Identifier: Apache-2.0
// Engines that read flush files: each delta is loaded on top of its base, or not at all.
#include "plugin/engines/engine_notifier.h"

#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "support/notifier_fixture.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// An engine that reads flush files, and reports the label of the last load.
class FlushEngine {
 public:
  FlushEngine() : server_([this](const HttpRequest& request) { return answer(request); }) {}
  [[nodiscard]] EngineEndpoint endpoint() const {
    return {.url = server_.url(), .action = EngineAction::kUpdateFlush};
  }

  std::string label = "default";
  std::string model;    // its model_path; empty: it reports none
  bool follows = true;  // model_path is what was loaded last
  int failures = 0;     // this many posts fail
  bool acts = true;     // it loads even if the post fails
  bool keeps_label = true;
  std::vector<Json> posts;

 private:
  HttpResponse answer(const HttpRequest& request) {
    if (request.line.starts_with("GET /model_info")) {
      Json info = {{"weight_version", label}};
      if (!model.empty()) info["model_path"] = model;
      return {200, info.dump(), milliseconds(0), ""};
    }
    if (request.line.find("_weight_update ") != std::string::npos) return yes(request);
    const Json body = Json::parse(request.body);
    if (body.value("new_version", "") == "unproven") {  // before the first load
      if (keeps_label) label = "unproven";
      return yes(request);
    }
    const bool fails = failures > 0;
    if (fails) --failures;
    if (keeps_label && (!fails || acts)) {
      if (body.contains("weight_version")) label = body.at("weight_version");
      if (body.contains("new_version")) label = body.at("new_version");
      if (!model.empty() && follows) model = body.value("model_path", model);
    }
    posts.push_back(body);
    return fails ? HttpResponse{400, R"({"success":false,"message":"no"})", milliseconds(0), ""}
                 : yes(request);
  }

  HttpServer server_;
};

class FlushNotifierTest : public EngineNotifierTest {
 protected:
  void SetUp() override {
    EngineNotifierTest::SetUp();
    options_.retries = 0;
  }
  void open() {
    options_.engines = {engine_.endpoint()};
    auto made = EngineNotifier::create(options_);
    ASSERT_TRUE(made.ok());
    notifier_ = std::move(*made);
  }
  Status notify(const PublishedVersion& version) {
    if (!notifier_) open();
    return notifier_->notify(version, Deadline::after(seconds(30))).at(0).status;
  }
  [[nodiscard]] std::vector<std::string> posted() const {
    std::vector<std::string> names;
    for (const Json& post : engine_.posts) {
      names.push_back(post.contains("weight_version") ? post.at("weight_version")
                                                      : post.at("new_version"));
    }
    return names;
  }

  FlushEngine engine_;
  std::unique_ptr<EngineNotifier> notifier_;
};

TEST_F(FlushNotifierTest, NamesTheFiles) {
  PublishedVersion version = version_seven();
  ASSERT_TRUE(notify(version).ok());
  EXPECT_EQ(engine_.posts, std::vector<Json>{(Json{{"model_path", "/shared/run/weight_v000007"},
                                                   {"load_format", "delta"},
                                                   {"files", {"a.safetensors", "b.safetensors"}},
                                                   {"weight_version", "7"}})});
}

TEST_F(FlushNotifierTest, WhatWasMissedIsMadeUpForInOrder) {
  ASSERT_TRUE(notify(delta_version(1)).ok());
  engine_.failures = 2;
  engine_.acts = false;
  EXPECT_FALSE(notify(delta_version(2)).ok());
  EXPECT_FALSE(notify(delta_version(3)).ok()) << "3 is not posted on top of 1";
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2", "2"}));
  ASSERT_TRUE(notify(delta_version(4)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2", "2", "2", "3", "4"}));
  EXPECT_EQ(engine_.label, "4");
}

// Its first delta may have been loaded in part: another run of the same base must not continue from
// there.
TEST_F(FlushNotifierTest, AServerWhoseFirstLoadFailedIsNotTakenForTheBase) {
  engine_.failures = 1;
  engine_.acts = false;
  EXPECT_FALSE(notify(delta_version(1)).ok());
  open();  // another trainer
  PublishedVersion other = delta_version(1);
  other.run = "cd";
  EXPECT_EQ(notify(other).code(), StatusCode::kWrongBase);
  other.full = true;
  EXPECT_TRUE(notify(other).ok()) << "a full version helps";
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "1"}));
}

TEST_F(FlushNotifierTest, APostWhoseAnswerWasLostIsNotRepeated) {
  engine_.failures = 1;
  EXPECT_TRUE(notify(delta_version(1)).ok()) << "its label says that it has it";
  ASSERT_TRUE(notify(delta_version(2)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2"}));
}

TEST_F(FlushNotifierTest, AnEngineThatWasStartedAnewGetsEverything) {
  ASSERT_TRUE(notify(delta_version(1)).ok());
  ASSERT_TRUE(notify(delta_version(2)).ok());
  engine_.label = "default";
  ASSERT_TRUE(notify(delta_version(3)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2", "1", "2", "3"}));
}

TEST_F(FlushNotifierTest, AnEngineThatReportsNoVersionGetsNoDelta) {
  engine_.label.clear();
  engine_.keeps_label = false;
  const Status refused = notify(delta_version(1));
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported) << refused.to_string();
  EXPECT_NE(refused.message().find("weight_version"), std::string::npos) << refused.to_string();
  PublishedVersion full = delta_version(2);
  full.full = true;
  ASSERT_TRUE(notify(full).ok()) << "a full version helps";
  EXPECT_FALSE(notify(delta_version(3)).ok()) << "it may have been started anew since";
  EXPECT_EQ(posted(), std::vector<std::string>{"2"});
}

TEST_F(FlushNotifierTest, AnEngineOfAnotherRunGetsNoDelta) {
  engine_.label = "1";
  const Status refused = notify(delta_version(2));
  EXPECT_EQ(refused.code(), StatusCode::kWrongBase);
  EXPECT_NE(refused.message().find("full version"), std::string::npos);
  EXPECT_TRUE(engine_.posts.empty());
  PublishedVersion full = delta_version(3);
  full.full = true;
  ASSERT_TRUE(notify(full).ok()) << "a full version helps";
  ASSERT_TRUE(notify(delta_version(4)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"3", "4"}));
  EXPECT_FALSE(engine_.posts[0].contains("load_format")) << "it is not posted as a delta";
  EXPECT_FALSE(engine_.posts[0].contains("files"));
}

// The engine had this number before the post, so the number does not show whether the post took
// effect.
TEST_F(FlushNotifierTest, ALabelOfAnotherRunWithTheSameNumberProvesNothing) {
  engine_.label = "2";
  engine_.failures = 1;
  engine_.acts = false;
  PublishedVersion full = delta_version(2);
  full.full = true;
  EXPECT_FALSE(notify(full).ok());
  ASSERT_TRUE(notify(full).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"2", "2"})) << "it is posted again";
}

// Two runs of one base notify one engine, each of its version 1.
TEST_F(FlushNotifierTest, AnotherRunsVersionOfTheSameNumberIsNotTakenForOurs) {
  engine_.model = "/base";
  ASSERT_TRUE(notify(delta_version(1)).ok());
  std::unique_ptr<EngineNotifier> ours = std::move(notifier_);
  PublishedVersion other = published("/other", 1, {"a.safetensors"});
  other.run = "cd";
  other.full = true;
  ASSERT_TRUE(notify(other).ok()) << "a full version, by a notifier of its own";
  std::swap(notifier_, ours);
  EXPECT_EQ(notify(delta_version(2)).code(), StatusCode::kWrongBase);
  EXPECT_EQ(notify(delta_version(3)).code(), StatusCode::kWrongBase) << "nor later";
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "1"}));
  PublishedVersion full = delta_version(4);
  full.full = true;
  ASSERT_TRUE(notify(full).ok()) << "a full version helps";
  ASSERT_TRUE(notify(delta_version(5)).ok());
}

TEST_F(FlushNotifierTest, AnotherRunsVersionIsNotTakenForAPostWhoseAnswerWasLost) {
  engine_.model = "/base";
  ASSERT_TRUE(notify(delta_version(1)).ok());
  engine_.failures = 1;
  engine_.acts = false;
  EXPECT_FALSE(notify(delta_version(2)).ok());
  engine_.label = "2";
  engine_.model = "/other/weight_v000002";
  EXPECT_EQ(notify(delta_version(3)).code(), StatusCode::kWrongBase);
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2"}));
}

TEST_F(FlushNotifierTest, ALostAnswerIsReplacedByTheReportedModelPath) {
  engine_.model = "/base";
  engine_.failures = 1;
  EXPECT_TRUE(notify(delta_version(1)).ok()) << "its label and model_path say that it has it";
  ASSERT_TRUE(notify(delta_version(2)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2"}));
}

TEST_F(FlushNotifierTest, AnEngineWhoseModelPathNeverChangesTakesDeltas) {
  engine_.model = "/base";
  engine_.follows = false;
  for (const std::uint64_t version : {1U, 2U, 3U}) ASSERT_TRUE(notify(delta_version(version)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2", "3"}));
}

// A server that was restarted names the base again; a load without a label keeps "default".
TEST_F(FlushNotifierTest, AnUnlabelledLoadOfOtherWeightsIsNotTakenForTheBase) {
  engine_.model = "/base";
  ASSERT_TRUE(notify(delta_version(1)).ok());
  engine_.label = "default";
  engine_.model = "/somewhere/else";
  EXPECT_EQ(notify(delta_version(2)).code(), StatusCode::kWrongBase);
  engine_.model = "/base";
  ASSERT_TRUE(notify(delta_version(2)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "1", "2"}));
}

TEST_F(FlushNotifierTest, AnEmptyVersionIsOnlyNamed) {
  PublishedVersion empty = delta_version(1);
  empty.files.clear();
  ASSERT_TRUE(notify(empty).ok());
  ASSERT_EQ(engine_.posts.size(), 1U);
  EXPECT_FALSE(engine_.posts[0].contains("files"));
  EXPECT_EQ(engine_.posts[0].at("new_version"), "1");
  ASSERT_TRUE(notify(delta_version(2)).ok());
}

TEST_F(FlushNotifierTest, AnEngineThatReportsAnotherVersionIsAnError) {
  ASSERT_TRUE(notify(delta_version(1)).ok());
  engine_.label = "7";  // another driver updates it, too
  EXPECT_EQ(notify(delta_version(2)).code(), StatusCode::kWrongBase);
  EXPECT_EQ(posted(), std::vector<std::string>{"1"});
}

}  // namespace
}  // namespace driftless::testing
