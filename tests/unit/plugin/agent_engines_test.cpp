// SPDX-License-Identifier: Apache-2.0
// The agent's calls to engines, and its reaction to failures, over real HTTP.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/agent_engines_fixture.h"

namespace driftless::testing {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

TEST_F(AgentEnginesTest, AnUpdateOfVllmInItsOrder) {
  VllmStandIn engine(2);
  const auto session = vllm(engine);
  const auto reached = session->update(1, times_);
  ASSERT_TRUE(reached.ok()) << reached.status().to_string();
  EXPECT_EQ(*reached, 1U);
  expect_all_at(engine, 1);
  EXPECT_EQ(engine.weight_version(), "1");
  EXPECT_EQ(engine.calls(),
            (std::vector<std::string>{
                "rpc:driftless_status", "rpc:driftless_open", "rpc:driftless_shares",
                "rpc:driftless_status", "/weight_info", "/reset_prefix_cache", "/resume",
                "rpc:driftless_stage", "rpc:driftless_status", "/pause", "/start_weight_update",
                "/update_weights", "rpc:driftless_status", "/finish_weight_update",
                "/reset_prefix_cache", "/resume", "/weight_info"}));
  engine.published = 4;
  EXPECT_EQ(*session->update(3, times_), 4U) << "the newest that the ranks found";
  EXPECT_EQ(engine.count("rpc:driftless_open"), 1U) << "once";
  EXPECT_EQ(engine.count("rpc:driftless_shares"), 1U) << "of these processes";
}

TEST_F(AgentEnginesTest, ARankThatDoesNotStagePausesNothing) {
  VllmStandIn engine(2);
  engine.fails = [](std::size_t rank, const std::string& what) {
    return rank == 1 && what == "stage";
  };
  const auto reached = vllm(engine)->update(1, times_);
  ASSERT_FALSE(reached.ok());
  EXPECT_NE(reached.status().message().find("stage failed"), std::string::npos);
  EXPECT_EQ(engine.count("/pause"), 0U);
  expect_all_at(engine, 0);
}

TEST_F(AgentEnginesTest, ARankThatDoesNotCommitTakesTheOthersBack) {
  VllmStandIn engine(3);
  engine.fails = [](std::size_t rank, const std::string& what) {
    return rank == 1 && what == "commit";
  };
  const auto session = vllm(engine);
  const auto reached = session->update(1, times_);
  ASSERT_FALSE(reached.ok());
  EXPECT_NE(reached.status().message().find("commit refused"), std::string::npos);
  EXPECT_EQ(engine.count("rpc:driftless_rollback"), 1U);
  EXPECT_EQ(engine.weight_version(), "default") << "no label without a proven commit";
  EXPECT_EQ(engine.count("/reset_prefix_cache"), 2U) << "at first, and after the write";
  expect_all_at(engine, 0);
  engine.fails = nullptr;
  ASSERT_TRUE(session->update(1, times_).ok()) << "the next one succeeds";
  expect_all_at(engine, 1);
}

TEST_F(AgentEnginesTest, RanksThatCannotBeBroughtBackDoNotServe) {
  VllmStandIn engine(2);
  engine.fails = [](std::size_t rank, const std::string& what) {
    return (rank == 1 && what == "commit") || (rank == 0 && what == "rollback");
  };
  const auto session = vllm(engine);
  const auto reached = session->update(1, times_);
  ASSERT_FALSE(reached.ok());
  EXPECT_NE(reached.status().message().find("left paused"), std::string::npos);
  EXPECT_TRUE(engine.paused());
  EXPECT_FALSE(session->close().ok());
  EXPECT_TRUE(engine.paused()) << "half of each version is never served";
  EXPECT_FALSE(session->update(1, times_).ok());
  EXPECT_TRUE(engine.paused());
  engine.fails = nullptr;
  engine.published = 2;
  ASSERT_TRUE(session->update(2, times_).ok()) << "a version that all ranks take helps";
  expect_all_at(engine, 2);
}

// An engine that outlives a run holds the other run's version of the same number.
TEST_F(AgentEnginesTest, AVersionOfAnotherRunIsNotTakenForTheGoal) {
  VllmStandIn engine(2);
  engine.published = 8;
  ASSERT_TRUE(vllm(engine)->update(8, times_).ok());
  const std::string other(32, 'b');
  engine.run = other;
  const auto reached =
      make_engine_session(make_vllm_transport(link(engine.url())), options_of(other))
          ->update(8, times_);
  ASSERT_FALSE(reached.ok()) << "the engine holds version 8 of another run";
  EXPECT_NE(reached.status().message().find("another run"), std::string::npos)
      << reached.status().to_string();
  expect_all_at(engine, 8);
}

TEST_F(AgentEnginesTest, AVersionWithoutAKnownDigestIsNotProven) {
  VllmStandIn engine(1);
  engine.published = 8;
  ASSERT_TRUE(vllm(engine)->update(8, times_).ok());
  const auto reached =
      make_engine_session(make_vllm_transport(link(engine.url())), options_of(engine.run, 7))
          ->update(7, times_);
  EXPECT_FALSE(reached.ok()) << "nobody told this agent the digest of version 8";
}

TEST_F(AgentEnginesTest, AnAgentStartedAnewLearnsTheVersionThatItsEngineHas) {
  VllmStandIn engine(1);
  engine.published = 8;
  ASSERT_TRUE(vllm(engine)->update(8, times_).ok());
  EngineSessionOptions options = options_of(engine.run, 3);
  const auto digests = std::make_shared<VersionDigests>();
  options.digests = digests;
  const auto session =
      make_engine_session(make_vllm_transport(link(engine.url())), std::move(options));
  std::thread relay([&] {
    std::this_thread::sleep_for(200ms);
    digests->note(8, *digest_from_hex(VllmStandIn::digest_of(engine.run, 8)));
  });
  const auto reached = session->update(3, times_);
  relay.join();
  ASSERT_TRUE(reached.ok()) << reached.status().to_string();
  EXPECT_EQ(*reached, 8U);
  EXPECT_EQ(engine.count("rpc:driftless_stage"), 1U) << "nothing newer is waited for";
}

// A reply of one server does not hold for the server that was started in its place.
TEST_F(AgentEnginesTest, ARestartedServerGetsNoLabelOfTheDeadOne) {
  for (const std::string moment :
       {"/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache",
        "/resume", "/weight_info", "rpc:driftless_status"}) {
    VllmStandIn engine(2);
    const auto session = vllm(engine);
    ASSERT_TRUE(session->update(1, times_).ok());
    engine.published = 2;
    int left = moment == "rpc:driftless_status" ? 3 : 1;  // the one that proves the commit
    engine.restarts = [&](const std::string& call) { return call == moment && --left == 0; };
    static_cast<void>(session->update(2, times_));
    EXPECT_EQ(engine.weight_version(), "default") << moment;
    engine.restarts = nullptr;
    ASSERT_TRUE(session->update(2, times_).ok()) << moment;
    expect_all_at(engine, 2);
    EXPECT_EQ(engine.weight_version(), "2");
  }
}

// The agent died after all ranks had written, and before the engine had its label.
TEST_F(AgentEnginesTest, ARestartedAgentGivesTheLabelBeforeItResumes) {
  VllmStandIn engine(2);
  ASSERT_TRUE(vllm(engine)->update(1, times_).ok());
  for (std::size_t i = 0; i < 2; ++i) {
    engine.set_rank(i, [](VllmStandIn::Rank& rank) { rank.version = 2; });
  }
  engine.published = 2;
  engine.set_paused(true);
  std::string label;
  engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
    if (call == "/finish_weight_update") label = "given";
    if (call == "/resume") {
      EXPECT_EQ(label, "given");
    }
    return std::nullopt;
  };
  ASSERT_TRUE(vllm(engine)->update(2, times_).ok());
  EXPECT_EQ(engine.weight_version(), "2");
  EXPECT_FALSE(engine.paused());
}

// A new agent must not trust the state that a killed driver left.
TEST_F(AgentEnginesTest, ARestartedAgentWhoseFirstQuestionFailsResumesNothing) {
  VllmStandIn engine(2);
  engine.set_paused(true);
  engine.set_rank(0, [](VllmStandIn::Rank& rank) { rank.version = 1; });
  engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
    if (call != "rpc:driftless_status") return std::nullopt;
    return HttpResponse{500, "not now", {}, ""};
  };
  const auto session = vllm(engine);
  const auto reached = session->update(1, times_);
  ASSERT_FALSE(reached.ok());
  EXPECT_NE(reached.status().message().find("left as it is"), std::string::npos);
  EXPECT_TRUE(session->close().ok());
  EXPECT_TRUE(engine.paused());
  EXPECT_EQ(engine.count("/resume"), 0U);
}

TEST_F(AgentEnginesTest, TornRanksStayPausedAlsoIfAllAreTorn) {
  for (const std::size_t torn : {std::size_t{1}, std::size_t{2}}) {
    VllmStandIn engine(2);
    const auto session = vllm(engine);
    ASSERT_TRUE(session->update(1, times_).ok());
    engine.published = 2;
    engine.fails = [&](std::size_t rank, const std::string& what) {
      return rank < torn && (what == "tear" || what == "rollback");
    };
    const auto reached = session->update(2, times_);
    ASSERT_FALSE(reached.ok());
    EXPECT_NE(reached.status().message().find("left paused"), std::string::npos);
    EXPECT_TRUE(engine.paused());
    const auto next = vllm(engine);  // an agent that was started in between
    EXPECT_FALSE(next->update(2, times_).ok() && torn == 1);
    EXPECT_EQ(engine.weight_version(), engine.paused() ? "1" : "2");
  }
}

// All ranks hold version 2, proven. If only clearing the cache fails, the engine serves, and the
// error reports that. If the end of its update fails, its label is still version 1's, so it stays
// paused.
TEST_F(AgentEnginesTest, AFailureToResetTheCacheOrToEndTheUpdateIsReported) {
  for (const std::string broken : {"/reset_prefix_cache", "/finish_weight_update"}) {
    VllmStandIn engine(2);
    const auto session = vllm(engine);
    ASSERT_TRUE(session->update(1, times_).ok());
    engine.published = 2;
    engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
      if (call != broken) return std::nullopt;
      return HttpResponse{500, "boom", {}, ""};
    };
    const auto reached = session->update(2, times_);
    ASSERT_FALSE(reached.ok()) << broken;
    for (const VllmStandIn::Rank& rank : engine.ranks()) EXPECT_EQ(rank.version, 2);
    const bool ended = broken != "/finish_weight_update";
    EXPECT_EQ(engine.paused(), !ended) << reached.status().to_string();
    EXPECT_EQ(reached.status().message().find("left paused") == std::string::npos, ended);
    engine.on = nullptr;
    const auto again = session->update(2, times_);
    EXPECT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_EQ(engine.weight_version(), "2");
    expect_all_at(engine, 2);
  }
}

TEST_F(AgentEnginesTest, WhatAKilledAgentLeftIsPutRight) {
  VllmStandIn engine(2);
  engine.fails = [](std::size_t rank, const std::string& what) {
    return rank == 1 && (what == "commit" || what == "rollback");
  };
  engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
    if (call != "rpc:driftless_rollback") return std::nullopt;
    return HttpResponse{500, "gone", {}, ""};
  };
  EXPECT_FALSE(vllm(engine)->update(1, times_).ok());
  ASSERT_TRUE(engine.paused());
  ASSERT_NE(engine.ranks()[0].version, engine.ranks()[1].version);
  engine.fails = nullptr;
  engine.on = nullptr;
  const auto next = vllm(engine);
  const auto reached = next->update(1, times_);
  ASSERT_TRUE(reached.ok()) << reached.status().to_string();
  expect_all_at(engine, 1);
}

TEST_F(AgentEnginesTest, ASlippedReplyQueueIsNotBelieved) {
  VllmStandIn engine(2);
  const auto session = vllm(engine);
  ASSERT_TRUE(session->update(1, times_).ok());
  engine.slips = 2;
  engine.published = 2;
  ASSERT_TRUE(session->update(2, times_).ok());
  expect_all_at(engine, 2);
  engine.slips = 1'000;
  engine.published = 3;
  ASSERT_TRUE(session->update(3, times_).ok()) << "answers that come one call late are still ours";
  expect_all_at(engine, 3);
  engine.stuck = true;
  engine.published = 4;
  const auto reached = session->update(4, times_);
  ASSERT_EQ(reached.status().code(), StatusCode::kMismatch);
  EXPECT_NE(reached.status().message().find("slipped"), std::string::npos);
  EXPECT_FALSE(engine.paused());
}

// Except if it was not possible to learn what it holds.
TEST_F(AgentEnginesTest, WhereverItFailsTheEngineIsResumed) {
  for (const std::string broken :
       {"/pause", "/start_weight_update", "/update_weights", "/finish_weight_update",
        "/reset_prefix_cache", "/weight_info", "rpc:driftless_stage", "rpc:driftless_status"}) {
    VllmStandIn engine(2);
    const auto session = vllm(engine);
    ASSERT_TRUE(session->update(1, times_).ok());
    engine.published = 2;
    engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
      if (call != broken) return std::nullopt;
      return HttpResponse{500, R"({"error":"boom"})", {}, ""};
    };
    const auto reached = session->update(2, times_);
    const bool unlabelled = broken == "/finish_weight_update";
    EXPECT_EQ(engine.paused(), unlabelled) << broken;
    EXPECT_FALSE(reached.ok()) << broken;
    EXPECT_EQ(reached.status().message().find("left paused") != std::string::npos, unlabelled);
    engine.on = nullptr;
    const auto again = session->update(2, times_);
    EXPECT_TRUE(again.ok()) << broken << ": " << again.status().to_string();
    expect_all_at(engine, 2);
    EXPECT_EQ(engine.weight_version(), "2") << broken;
  }
}

TEST_F(AgentEnginesTest, AServerWithoutSessionsIsCommittedByItsWorkers) {
  VllmStandIn engine(2);
  engine.session_known = false;
  ASSERT_TRUE(vllm(engine)->update(1, times_).ok());
  expect_all_at(engine, 1);
  EXPECT_EQ(engine.count("/start_weight_update"), 0U);
  EXPECT_EQ(engine.count("rpc:driftless_commit"), 1U);
}

TEST_F(AgentEnginesTest, AResumeThatFailsIsTriedAgain) {
  VllmStandIn engine(1);
  int failures = 3;
  engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
    if (call != "/resume" || failures-- <= 0) return std::nullopt;
    return HttpResponse{503, "later", {}, ""};
  };
  EXPECT_TRUE(vllm(engine)->update(1, times_).ok());
  expect_all_at(engine, 1);
}

TEST_F(AgentEnginesTest, RepliesThatAreNoneAreRefused) {
  for (const std::string body : {R"({"results":[]})", R"({"results":[{"nonce":"x"}]})",
                                 R"({"results":5})", "[]", "no", R"({"results":[null,null]})"}) {
    VllmStandIn engine(1);
    engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
      if (!call.starts_with("rpc:")) return std::nullopt;
      return HttpResponse{200, body, {}, ""};
    };
    EXPECT_FALSE(vllm(engine)->update(1, times_).ok()) << body;
    EXPECT_EQ(engine.count("/pause"), 0U);
  }
}

TEST_F(AgentEnginesTest, VllmReloadsACheckpoint) {
  VllmStandIn engine(1);
  DiskVersions versions;
  versions.checkpoint = "/local/model";
  versions.holds = identity(7);
  const auto session =
      make_engine_session(make_vllm_disk_transport(link(engine.url()), versions), options_of(kRun));
  EXPECT_EQ(*session->update(7, times_), 7U);
  EXPECT_EQ(engine.calls(),
            (std::vector<std::string>{"/pause", "rpc:reload_weights", "/weight_info",
                                      "/update_weight_version", "/weight_info",
                                      "/reset_prefix_cache", "/resume", "/weight_info"}))
      << "it has its label before it serves";
  EXPECT_EQ(engine.weight_version(), "7");
  EXPECT_FALSE(engine.paused());
  engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
    if (call != "rpc:reload_weights") return std::nullopt;
    return HttpResponse{500, "half way", {}, ""};
  };
  versions.holds = identity(8);
  const auto refused = session->update(8, times_);
  EXPECT_NE(refused.status().message().find("left paused"), std::string::npos);
  EXPECT_TRUE(engine.paused()) << "it may hold parts of two versions";
  engine.on = nullptr;
  EXPECT_EQ(*session->update(8, times_), 8U);
  EXPECT_FALSE(engine.paused());
}

// A proxy may reply 200 with a login page.
TEST_F(AgentEnginesTest, ALoginPageIsNoSuccessfulPause) {
  for (const HttpResponse& page :
       {HttpResponse{302, "", {}, "Location: /login\r\n"}, HttpResponse{200, "<html>", {}, ""}}) {
    VllmStandIn engine(1);
    engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
      if (call != "/pause") return std::nullopt;
      return page;
    };
    EXPECT_FALSE(vllm(engine)->update(1, times_).ok());
    EXPECT_EQ(engine.count("/update_weights"), 0U);
    expect_all_at(engine, 0);
  }
}

TEST_F(AgentEnginesTest, StoppingEndsStagingButNeverLeavesAPausedEngine) {
  VllmStandIn engine(1);
  engine.on = [&](const std::string& call) -> std::optional<HttpResponse> {
    if (call == "/update_weights") stop_ = true;  // asked to stop while it is paused
    return std::nullopt;
  };
  const auto session = vllm(engine);
  static_cast<void>(session->update(1, times_));
  EXPECT_TRUE(session->close().ok());
  EXPECT_EQ(engine.ranks()[0].version, 1) << "the commit was carried through";
  EXPECT_FALSE(engine.paused());
  engine.published = 2;
  EXPECT_FALSE(session->update(2, times_).ok()) << "nothing new is begun";
  EXPECT_EQ(engine.count("/pause"), 1U);
}

}  // namespace
}  // namespace driftless::testing
