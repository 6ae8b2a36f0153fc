// SPDX-License-Identifier: Apache-2.0
// Engines that are paused while they load. An engine that may be torn is not resumed, one that is
// whole is, and no call waits longer than necessary. The engine is a stand-in, so that replies can
// be lost.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "plugin/job/notified_engines.h"
#include "support/notifier_fixture.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

HttpAnswer answered(long number, std::string body) {
  return {{}, number, std::move(body), false, true};
}
HttpAnswer lost(const HttpCall& call) {
  return {error(StatusCode::kDeadlineExceeded, call.url, ": no reply"), 0, "", true};
}

// Like SGLang, it keeps connections open.
class PausableEngine {
 public:
  using Fault = std::function<std::optional<HttpAnswer>(const std::string& path, const Json& body,
                                                        const HttpCall& call)>;

  [[nodiscard]] HttpFunction http() {
    return [this](const HttpCall& call, milliseconds timeout, const std::atomic<bool>*) {
      if (call.same_server && !connected_) {
        return HttpAnswer{error(StatusCode::kIncomplete, call.url, ": is gone"), 0, "", false};
      }
      std::this_thread::sleep_for(std::min(timeout, takes));
      HttpAnswer answer = takes > timeout ? lost(call) : answer_to(call);
      connected_ = answer.status.ok();
      return answer;
    };
  }
  void start() {
    label = "default";
    paused = torn = connected_ = false;
  }
  [[nodiscard]] bool serves_torn() const { return torn && !paused; }

  std::string label = "default";
  bool paused = false, torn = false;
  milliseconds takes{0};  // every call
  std::vector<std::string> calls;
  Fault fault;  // done in place of the call

 private:
  HttpAnswer answer_to(const HttpCall& call) {
    const std::string path = call.url.substr(std::string("http://e").size());
    const Json body = call.get ? Json::object() : Json::parse(call.body);
    const bool meets = path.ends_with("_weight_update");  // its ranks meet, and change nothing
    if (!call.get && !meets) calls.push_back(path);
    if (fault) {
      if (std::optional<HttpAnswer> answer = fault(path, body, call)) return *answer;
    }
    if (path == "/model_info") return answered(200, Json{{"weight_version", label}}.dump());
    if (path == "/pause_generation") paused = true;
    if (path == "/continue_generation") paused = false;
    if (path == "/update_weight_version") label = body.at("new_version");
    if (path == "/update_weights_from_disk") {
      torn = false;
      label = body.at("weight_version");
    }
    return answered(200, kYes);
  }

  bool connected_ = false;
};

class PausedNotifierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.timeout = seconds(10);
    options_.retries = 1;
    options_.retry_wait = milliseconds(1);
  }
  void open(EngineAction action = EngineAction::kUpdateFlush) {
    options_.engines = {engine_at("http://e", action)};
    auto made = EngineNotifier::create(options_, engine_.http());
    ASSERT_TRUE(made.ok());
    notifier_ = std::move(*made);
  }
  EngineResult notify(const PublishedVersion& version, milliseconds longest = seconds(60)) {
    if (!notifier_) open();
    return notifier_->notify(version, Deadline::after(longest)).at(0);
  }

  NotifyOptions options_;
  PausableEngine engine_;
  std::unique_ptr<EngineNotifier> notifier_;
};

// The new server is not paused: it would serve the weights that the load left.
TEST_F(PausedNotifierTest, AServerThatRestartsAfterThePauseIsPausedAgain) {
  open(EngineAction::kUpdateFromDisk);
  engine_.fault = [this](const std::string& path, const Json&,
                         const HttpCall&) -> std::optional<HttpAnswer> {
    if (path != "/update_weights_from_disk") return std::nullopt;
    engine_.start();
    engine_.torn = true;
    return answered(400, R"({"message":"no"})");
  };
  EXPECT_TRUE(notify(delta_version(1)).left_paused);
  EXPECT_TRUE(engine_.torn && engine_.paused);
}

// The second try finds its connection closed and gets no reply; the first try may have loaded.
TEST_F(PausedNotifierTest, APostWhoseAnswerWasLostMayHaveTornTheEngine) {
  ASSERT_TRUE(notify(delta_version(1)).status.ok());
  engine_.fault = [this](const std::string& path, const Json&,
                         const HttpCall& call) -> std::optional<HttpAnswer> {
    if (path != "/update_weights_from_disk") return std::nullopt;
    engine_.torn = true;
    return lost(call);
  };
  const EngineResult failed = notify(delta_version(2));
  EXPECT_FALSE(failed.status.ok());
  EXPECT_TRUE(failed.left_paused) << failed.status.to_string();
  EXPECT_FALSE(engine_.serves_torn());
  engine_.fault = {};
  ASSERT_TRUE(notify(delta_version(3)).status.ok());
  EXPECT_EQ(engine_.label, "3");
  EXPECT_FALSE(engine_.paused);
}

// The weights may have changed although the label has not.
TEST_F(PausedNotifierTest, WhatTheFirstLoadToreIsNotResumedByTheNextTrainer) {
  engine_.fault = [this](const std::string& path, const Json&,
                         const HttpCall&) -> std::optional<HttpAnswer> {
    if (path != "/update_weights_from_disk") return std::nullopt;
    engine_.torn = true;
    return answered(400, R"({"success":false,"message":"no room"})");
  };
  EXPECT_TRUE(notify(delta_version(1)).left_paused);
  engine_.fault = {};
  const EngineResult next = notify(delta_version(5));
  EXPECT_TRUE(next.left_paused);
  EXPECT_EQ(next.status.code(), StatusCode::kWrongBase) << next.status.to_string();
  open();
  EXPECT_EQ(notify(delta_version(5)).status.code(), StatusCode::kWrongBase);
  EXPECT_FALSE(engine_.serves_torn());
  PublishedVersion full = delta_version(6);
  full.full = true;
  EXPECT_TRUE(notify(full).status.ok());
  EXPECT_FALSE(engine_.paused);
}

TEST_F(PausedNotifierTest, AnEngineThatRestartsAfterItsAnswerGetsAFullVersionNext) {
  ASSERT_TRUE(notify(delta_version(1)).status.ok());
  engine_.fault = [this](const std::string& path, const Json&,
                         const HttpCall&) -> std::optional<HttpAnswer> {
    if (path != "/update_weights_from_disk") return std::nullopt;
    engine_.start();
    return answered(200, kYes);
  };
  EXPECT_FALSE(notify(delta_version(2)).status.ok());
  engine_.fault = {};
  const EngineResult done = notify(delta_version(3));
  EXPECT_TRUE(done.status.ok()) << done.status.to_string();
  EXPECT_EQ(engine_.label, "3");
  EXPECT_FALSE(engine_.paused);
}

TEST_F(PausedNotifierTest, ANameThatIsRefusedTearsNothing) {
  ASSERT_TRUE(notify(delta_version(1)).status.ok());
  engine_.fault = [](const std::string& path, const Json&,
                     const HttpCall&) -> std::optional<HttpAnswer> {
    if (path != "/update_weight_version") return std::nullopt;
    return answered(400, R"({"success":false,"message":"no"})");
  };
  PublishedVersion empty = delta_version(2);
  empty.files.clear();
  const EngineResult failed = notify(empty);
  EXPECT_FALSE(failed.status.ok());
  EXPECT_FALSE(failed.left_paused) << failed.status.to_string();
  EXPECT_FALSE(engine_.paused);
}

// SGLang's reply while requests wait for their grammar, which they do until it is resumed.
TEST_F(PausedNotifierTest, ALoadDoesNotRequestACacheFlush) {
  engine_.fault = [](const std::string& path, const Json& body,
                     const HttpCall&) -> std::optional<HttpAnswer> {
    const bool loads = path == "/update_weights_from_disk";
    if (!loads || !body.value("flush_cache", true)) return std::nullopt;
    return answered(400, R"({"success":false,"message":"updated, but the cache was not flushed"})");
  };
  open(EngineAction::kUpdateFromDisk);
  const EngineResult done = notify(delta_version(1));
  EXPECT_TRUE(done.status.ok()) << done.status.to_string();
  EXPECT_FALSE(engine_.paused);
}

TEST_F(PausedNotifierTest, AnEngineMayAnswerAPauseInAnyWords) {
  engine_.fault = [this](const std::string& path, const Json&,
                         const HttpCall&) -> std::optional<HttpAnswer> {
    if (!path.ends_with("_generation")) return std::nullopt;
    engine_.paused = path == "/pause_generation";
    return answered(200, "OK");
  };
  open(EngineAction::kUpdateFromDisk);
  const EngineResult done = notify(delta_version(1));
  EXPECT_TRUE(done.status.ok()) << done.status.to_string();
  EXPECT_FALSE(engine_.paused);
}

TEST_F(PausedNotifierTest, SupportForPausesIsNotReadFromTheAnswersText) {
  engine_.fault = [](const std::string& path, const Json&,
                     const HttpCall&) -> std::optional<HttpAnswer> {
    if (path != "/pause_generation") return std::nullopt;
    return answered(400, R"({"message":"a worker answered with status 404"})");
  };
  open(EngineAction::kUpdateFromDisk);
  EXPECT_FALSE(notify(delta_version(1)).status.ok());
  EXPECT_EQ(engine_.calls, std::vector<std::string>{"/pause_generation"}) << "nothing is loaded";
}

TEST_F(PausedNotifierTest, TheCacheIsFlushedOnceTheRequestsUnderWayAreThrough) {
  int refused = 6;  // about two and a half seconds
  engine_.fault = [&refused](const std::string& path, const Json&,
                             const HttpCall&) -> std::optional<HttpAnswer> {
    if (path != "/flush_cache" || refused-- <= 0) return std::nullopt;
    return answered(400, "Flush cache failed.\n");
  };
  open(EngineAction::kUpdateFromDisk);
  const EngineResult done = notify(delta_version(1));
  EXPECT_TRUE(done.status.ok()) << done.status.to_string();
  EXPECT_EQ(engine_.calls.back(), "/continue_generation");
}

TEST_F(PausedNotifierTest, ACacheThatIsNeverFlushedIsGivenUpAfterTheTimeout) {
  options_.timeout = milliseconds(500);
  engine_.fault = [](const std::string& path, const Json&,
                     const HttpCall&) -> std::optional<HttpAnswer> {
    if (path != "/flush_cache") return std::nullopt;
    return answered(400, "Flush cache failed.\n");
  };
  const EngineResult done = notify(delta_version(1));
  EXPECT_EQ(done.status.code(), StatusCode::kBusy) << done.status.to_string();
  EXPECT_FALSE(engine_.paused) << "it holds the version";
  EXPECT_LT(done.ms, 30'000);
}

// The driver asks for the result again and again, and every call hangs.
TEST_F(PausedNotifierTest, AnEngineThatHangsInItsLoadIsGivenUp) {
  options_.timeout = milliseconds(300);
  engine_.fault = [this](const std::string& path, const Json&,
                         const HttpCall& call) -> std::optional<HttpAnswer> {
    if (path != "/update_weights_from_disk") return std::nullopt;
    engine_.takes = seconds(60);
    return lost(call);
  };
  open(EngineAction::kUpdateFromDisk);
  const EngineResult failed = notify(delta_version(1));
  EXPECT_TRUE(failed.left_paused) << failed.status.to_string();
  EXPECT_LT(failed.ms, 30'000);
}

TEST_F(PausedNotifierTest, AnEngineThatHangsInItsResumeIsGivenUp) {
  options_.timeout = milliseconds(500);
  engine_.fault = [this](const std::string& path, const Json&,
                         const HttpCall& call) -> std::optional<HttpAnswer> {
    if (path != "/continue_generation") return std::nullopt;
    engine_.takes = seconds(60);
    return lost(call);
  };
  open(EngineAction::kUpdateFromDisk);
  const EngineResult failed = notify(delta_version(1));
  EXPECT_TRUE(failed.left_paused) << failed.status.to_string();
  EXPECT_LT(failed.ms, 30'000);
}

TEST_F(PausedNotifierTest, TheTimeThatARunGivesIsEnoughForCallsThatAllTakeLong) {
  options_.timeout = milliseconds(1000);
  options_.retries = 0;
  Config config;
  config.notify = options_;
  config.engine_calls = options_;
  config.engines.push_back(engine_at("http://e"));
  engine_.takes = milliseconds(760);
  open(EngineAction::kPullWeights);
  const EngineResult done = notify(delta_version(1), NotifiedEngines::longest(config));
  EXPECT_TRUE(done.status.ok()) << done.status.to_string();
  EXPECT_FALSE(engine_.paused);
}

}  // namespace
}  // namespace driftless::testing
