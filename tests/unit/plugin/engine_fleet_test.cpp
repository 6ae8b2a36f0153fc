// SPDX-License-Identifier: Apache-2.0
// The engines of a host, each on a thread of its own: which thread waits for which, and what a
// check finds.
#include "plugin/engines/engine_fleet.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/agent_engines_fixture.h"

namespace driftless::testing {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// A session whose results the test sets.
class ScriptedSession final : public EngineSession {
 public:
  explicit ScriptedSession(std::function<Result<std::uint64_t>(std::uint64_t)> act)
      : act_(std::move(act)) {}
  Result<std::uint64_t> update(std::uint64_t goal, CommitTimes&) override { return act_(goal); }
  Status check(std::uint64_t version) override { return still ? still(version) : Status(); }
  Status close() override {
    ++closed;
    return {};
  }
  std::function<Status(std::uint64_t)> still;
  static inline std::atomic<int> closed = 0;

 private:
  std::function<Result<std::uint64_t>(std::uint64_t)> act_;
};

TEST(EngineFleetTest, AnEngineThatHangsOrFailsDoesNotDelayOthers) {
  ScriptedSession::closed = 0;
  std::atomic<bool> hang{true};
  std::atomic<int> tries{0};
  EngineFleet fleet({.retries = 2, .retry_wait = 1ms}, {"good", "failing", "hanging"});
  std::vector<std::unique_ptr<EngineSession>> sessions;
  sessions.push_back(std::make_unique<ScriptedSession>([](std::uint64_t goal) { return goal; }));
  sessions.push_back(std::make_unique<ScriptedSession>([&](std::uint64_t) -> Result<std::uint64_t> {
    ++tries;
    return error(StatusCode::kIo, "nobody there");
  }));
  sessions.push_back(std::make_unique<ScriptedSession>([&](std::uint64_t goal) {
    while (hang && !fleet.stopping()) std::this_thread::sleep_for(1ms);
    return goal;
  }));
  fleet.start(std::move(sessions));
  const Deadline deadline = Deadline::after(60s);
  for (std::uint64_t goal = 1; goal <= 5; ++goal) {
    fleet.set_goal(goal);
    while (fleet.states()[0].version != goal && !deadline.expired()) {
      std::this_thread::sleep_for(1ms);
    }
    EXPECT_EQ(fleet.states()[0].version, goal);
  }
  while (fleet.states()[1].status.ok() && !deadline.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(fleet.states()[1].status.code(), StatusCode::kIo);
  EXPECT_FALSE(fleet.all_at(5));
  hang = false;
  while (fleet.states()[2].version != 5 && !deadline.expired()) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(fleet.states()[2].version, 5U) << "it catches up with the newest";
  fleet.stop();
  EXPECT_GE(tries, 3);
  EXPECT_EQ(ScriptedSession::closed, 3) << "each is closed, so that what is paused is resumed";
  bool reported = false;
  for (const EngineRecord& update : fleet.take_updates()) {
    reported =
        reported || (update.engine == "failing" && !update.status.ok() && update.attempts <= 3);
  }
  EXPECT_TRUE(reported);
}

// An engine that restarts between two versions, or after the last one, serves its base.
TEST_F(AgentEnginesTest, AnIdleEngineThatWasStartedAnewIsUpdatedAgain) {
  VllmStandIn engine(2);
  EngineFleet fleet({.retries = 0, .retry_wait = 1ms}, {engine.url()}, 20ms);
  std::vector<std::unique_ptr<EngineSession>> sessions;
  sessions.push_back(vllm(engine));
  fleet.start(std::move(sessions));
  fleet.set_goal(1);
  const auto wait_for = [&](auto done) {
    const Deadline deadline = Deadline::after(60s);
    while (!done() && !deadline.expired()) std::this_thread::sleep_for(1ms);
  };
  wait_for([&] { return fleet.all_at(1); });
  ASSERT_TRUE(fleet.all_at(1));
  engine.restart();
  wait_for([&] { return engine.weight_version() == "1" && fleet.all_at(1); });
  EXPECT_EQ(engine.weight_version(), "1");
  EXPECT_EQ(engine.ranks()[1].version, 1);
  EXPECT_TRUE(fleet.all_at(1));
}

template <typename Done>
void wait_until_done(const Done& done) {
  const Deadline deadline = Deadline::after(60s);
  while (!done() && !deadline.expired()) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(done());
}

std::vector<std::unique_ptr<EngineSession>> one(std::unique_ptr<ScriptedSession> session) {
  std::vector<std::unique_ptr<EngineSession>> sessions;
  sessions.push_back(std::move(session));
  return sessions;
}

TEST(EngineFleetTest, AnIdleEngineThatDoesNotAnswerIsNotReachableUntilItDoes) {
  std::atomic<StatusCode> code{StatusCode::kOk};
  std::atomic<int> updates{0}, looks{0};
  EngineFleet fleet({.retries = 0, .retry_wait = 1ms}, {"engine"}, 5ms);
  auto session = std::make_unique<ScriptedSession>([&](std::uint64_t goal) {
    ++updates;
    return goal;
  });
  session->still = [&](std::uint64_t version) {
    ++looks;
    EXPECT_TRUE(version == 0 || version == 3);
    return code == StatusCode::kOk ? Status() : error(code, "no words");
  };
  fleet.start(one(std::move(session)));
  fleet.set_goal(3);
  const auto state = [&] { return fleet.states()[0]; };
  wait_until_done([&] { return fleet.all_at(3) && looks > 2; });
  static_cast<void>(fleet.take_updates());
  code = StatusCode::kInvalidArgument;  // any reply counts
  const int before = looks;
  wait_until_done([&] { return looks > before + 3; });
  EXPECT_TRUE(fleet.all_at(3));
  for (const StatusCode silence : {StatusCode::kIo, StatusCode::kDeadlineExceeded}) {
    code = silence;
    wait_until_done([&] { return !state().reachable; });
    EXPECT_EQ(state().version, 0U);
    EXPECT_EQ(state().confirmed, 3U);
    EXPECT_EQ(state().status.code(), silence);
    EXPECT_TRUE(state().given_up()) << "nobody waits for it";
    EXPECT_FALSE(fleet.all_at(3));
    code = StatusCode::kOk;
    wait_until_done([&] { return fleet.all_at(3); });
    EXPECT_TRUE(state().reachable);
    EXPECT_EQ(updates, 1) << "it is as it was";
    const std::vector<EngineRecord> found = fleet.take_updates();
    ASSERT_EQ(found.size(), 2U);
    for (const EngineRecord& each : found) {
      EXPECT_EQ(each.attempts, 0U);
      EXPECT_FALSE(each.origin.time.empty());
    }
  }
  code = StatusCode::kIo;
  wait_until_done([&] { return !state().reachable; });
  code = StatusCode::kMismatch;  // another server process answers
  wait_until_done([&] { return updates >= 2; });
  code = StatusCode::kOk;
  wait_until_done([&] { return fleet.all_at(3); });
  EXPECT_FALSE(state().reload);
}

TEST(EngineFleetTest, ASingleUnansweredCheckChangesNothing) {
  std::atomic<int> looks{0};
  EngineFleet fleet({.retries = 0, .retry_wait = 1ms}, {"engine"}, 2ms);
  auto session = std::make_unique<ScriptedSession>([](std::uint64_t goal) { return goal; });
  session->still = [&](std::uint64_t) {
    return looks++ % 2 == 0 ? error(StatusCode::kIo, "busy") : Status();
  };
  fleet.start(one(std::move(session)));
  fleet.set_goal(1);
  wait_until_done([&] { return fleet.all_at(1) && looks > 8; });
  EXPECT_EQ(fleet.take_updates().size(), 1U);
  EXPECT_TRUE(fleet.all_at(1));
}

// To update it could delay the handing over of files to other engines.
TEST(EngineFleetTest, AnEngineThatDoesNotAnswerIsOnlyLookedAt) {
  std::atomic<bool> there{true};
  std::atomic<int> updates{0};
  EngineFleet fleet({.retries = 0, .retry_wait = 1ms}, {"engine"}, 5ms);
  auto session =
      std::make_unique<ScriptedSession>([&](std::uint64_t goal) -> Result<std::uint64_t> {
        ++updates;
        if (!there) return error(StatusCode::kIo, "nobody there");
        return goal;
      });
  session->still = [&](std::uint64_t) {
    return there ? Status() : error(StatusCode::kIo, "nobody there");
  };
  fleet.start(one(std::move(session)));
  fleet.set_goal(1);
  wait_until_done([&] { return fleet.all_at(1); });
  there = false;
  wait_until_done([&] { return !fleet.states()[0].reachable; });
  for (std::uint64_t goal = 2; goal <= 4; ++goal) {
    fleet.set_goal(goal);
    wait_until_done([&] { return fleet.states()[0].goal == goal; });
  }
  EXPECT_EQ(fleet.states()[0].version, 0U);
  EXPECT_FALSE(fleet.states()[0].reachable);
  EXPECT_EQ(updates, 1);
  there = true;
  wait_until_done([&] { return fleet.all_at(4); });
}

TEST(EngineFleetTest, ALookIsBoundedAndEndsWhenAVersionComes) {
  std::atomic<bool> hanging{false}, looking{false};
  EngineFleet fleet({.retries = 0, .retry_wait = 1ms}, {"engine"}, 1ms);
  const HttpFunction http = fleet.http(
      0, [&](const HttpCall&, std::chrono::milliseconds timeout, const std::atomic<bool>* stop) {
        EXPECT_LE(timeout, EngineFleet::kLook);
        EXPECT_NE(stop, nullptr);
        HttpAnswer answer;
        looking = true;
        const Deadline deadline = Deadline::after(timeout);
        while (hanging && !*stop && !deadline.expired()) std::this_thread::sleep_for(1ms);
        if (*stop) answer.status = error(StatusCode::kIncomplete, "not waited for any longer");
        return answer;
      });
  auto session = std::make_unique<ScriptedSession>([](std::uint64_t goal) { return goal; });
  session->still = [&](std::uint64_t) {
    return http({"u", {}, {}, true, false}, 120s, nullptr).status;
  };
  fleet.start(one(std::move(session)));
  fleet.set_goal(1);
  wait_until_done([&] { return fleet.all_at(1); });
  hanging = true;
  looking = false;
  wait_until_done([&] { return looking.load(); });
  const auto began = std::chrono::steady_clock::now();
  fleet.set_goal(2);
  wait_until_done([&] { return fleet.all_at(2); });
  EXPECT_LT(std::chrono::steady_clock::now() - began, EngineFleet::kLook / 2);
  looking = false;
  wait_until_done([&] { return looking.load(); });
  const auto ending = std::chrono::steady_clock::now();
  fleet.stop();
  EXPECT_LT(std::chrono::steady_clock::now() - ending, EngineFleet::kLook / 2);
}

// It reports neither a label nor its weights: after it was unreachable, its version is unknown.
TEST_F(AgentEnginesTest, AnEngineWithoutALabelThatWasGoneIsLoadedAgain) {
  VllmStandIn engine(1);
  std::atomic<bool> gone{false};
  engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
    if (gone) return HttpResponse{503, "starting", {}, ""};
    if (call != "/weight_info" && call != "/update_weight_version") return std::nullopt;
    return HttpResponse{404, "{}", {}, ""};
  };
  DiskVersions versions;
  versions.checkpoint = "/local/model";
  versions.holds = identity(7);
  const auto session =
      make_engine_session(make_vllm_disk_transport(link(engine.url()), versions), options_of(kRun));
  ASSERT_EQ(*session->update(7, times_), 7U);
  EXPECT_TRUE(session->check(7).ok());
  gone = true;
  EXPECT_EQ(session->check(7).code(), StatusCode::kIo);
  EXPECT_EQ(session->check(7).code(), StatusCode::kIo);
  gone = false;
  EXPECT_EQ(session->check(7).code(), StatusCode::kMismatch);
  EXPECT_TRUE(session->check(0).ok());
}

TEST(EngineFleetTest, AnEngineThatServesSomethingElseInTheEndIsNotAtTheVersion) {
  for (const StatusCode code : {StatusCode::kOk, StatusCode::kMismatch, StatusCode::kIo}) {
    EngineFleet fleet({.retries = 0, .retry_wait = 1ms}, {"engine"});
    auto session = std::make_unique<ScriptedSession>([](std::uint64_t goal) { return goal; });
    session->still = [code](std::uint64_t) {
      return code == StatusCode::kOk ? Status() : error(code, "started anew");
    };
    std::vector<std::unique_ptr<EngineSession>> sessions;
    sessions.push_back(std::move(session));
    fleet.start(std::move(sessions));
    fleet.set_goal(3);
    const Deadline deadline = Deadline::after(60s);
    while (!fleet.all_at(3) && !deadline.expired()) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(fleet.all_at(3));
    fleet.stop(/*confirm=*/true);
    EXPECT_EQ(fleet.all_at(3), code == StatusCode::kOk) << to_string(code);
  }
}

}  // namespace
}  // namespace driftless::testing
