// What the agent says to engines, and what it makes of failures, against real HTTP.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "plugin/engines/engine_fleet.h"
#include "plugin/engines/engine_http.h"
#include "plugin/engines/engine_session.h"
#include "plugin/engines/sglang_command.h"
#include "support/engine_stand_in.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

const std::string kRun(32, 'a');

EngineIdentity identity(std::int64_t version, const std::string& run = kRun) {
  return {run, version, VllmStandIn::digest_of(run, version)};
}

class AgentEnginesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (check_http().code() == StatusCode::kUnsupported) GTEST_SKIP() << "built without libcurl";
  }
  [[nodiscard]] EngineLink link(const std::string& url, std::chrono::milliseconds timeout = 10s) {
    return {url, "", timeout, &stop_};
  }
  // An agent of this run knows the digests of its versions.
  [[nodiscard]] static SessionOptions options_of(const std::string& run,
                                                 std::uint64_t versions = 9) {
    const auto digests = std::make_shared<VersionDigests>();
    for (std::uint64_t version = 0; version <= versions; ++version) {
      const auto number = static_cast<std::int64_t>(version);
      digests->note(version, *digest_from_hex(VllmStandIn::digest_of(run, number)));
    }
    return {run, "host_shm:test", 2s, digests};
  }
  [[nodiscard]] std::unique_ptr<EngineSession> vllm(const VllmStandIn& engine) {
    return make_engine_session(make_vllm_transport(link(engine.url())), options_of(engine.run));
  }
  static void expect_all_at(const VllmStandIn& engine, std::int64_t version) {
    for (const VllmStandIn::Rank& rank : engine.ranks()) EXPECT_EQ(rank.version, version);
    EXPECT_FALSE(engine.paused());
  }

  std::atomic<bool> stop_{false};
  EngineTimes times_;
};

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
                "rpc:driftless_status", "rpc:driftless_open", "/reset_prefix_cache", "/resume",
                "rpc:driftless_stage", "rpc:driftless_status", "/pause", "/start_weight_update",
                "/update_weights", "rpc:driftless_status", "/finish_weight_update",
                "/reset_prefix_cache", "/resume", "/weight_info"}));
  engine.published = 4;
  EXPECT_EQ(*session->update(3, times_), 4U) << "the newest that the ranks found";
  EXPECT_EQ(engine.count("rpc:driftless_open"), 1U) << "once";
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

// Defect 1: an engine that outlives a run holds the other run's version of the same number.
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

// Defect 2: what a server said is not true of the one that was started in its place.
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

// Defect 11: what a driver that was killed left behind.
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

TEST_F(AgentEnginesTest, AFailureOfTheCacheOrTheEndIsSaidAndTheEngineServes) {
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
    EXPECT_FALSE(reached.ok()) << broken;
    EXPECT_FALSE(engine.paused()) << "all ranks hold version 2, proven";
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
    EXPECT_FALSE(engine.paused()) << broken;
    EXPECT_FALSE(reached.ok()) << broken;
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
  EXPECT_EQ(engine.calls(), (std::vector<std::string>{
                                "/pause", "rpc:reload_weights", "/reset_prefix_cache", "/resume",
                                "/weight_info", "/update_weight_version", "/weight_info"}));
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

// SGLang's calls, as far as files are concerned.
class SglangFiles {
 public:
  SglangFiles()
      : server_([this](const HttpRequest& request) -> HttpResponse {
          const std::size_t begin = request.line.find(' ') + 1;
          const std::string path =
              request.line.substr(begin, request.line.find(' ', begin) - begin);
          calls.push_back(path);
          if (path == "/model_info") {
            const nlohmann::json info = {{"model_path", model_path}, {"weight_version", version}};
            return {200, info.dump(), {}, ""};
          }
          if (path == "/server_info") {
            const nlohmann::json took = {{"scheduler_e2e", started}};
            return {200, nlohmann::json{{"tp_size", 1}, {"startup_time", took}}.dump(), {}, ""};
          }
          if (path == "/pause_generation") paused = true;
          if (path == "/continue_generation") paused = false;
          if (path == "/flush_cache") return {200, "Cache flushed.\n", {}, ""};
          if (path == "/update_weights_from_disk") {
            if (refuses) return {400, R"({"success":false,"message":"no"})", {}, ""};
            const auto body = nlohmann::json::parse(request.body);
            loaded.push_back(body.at("model_path"));
            version = body.at("weight_version");
          }
          return {200, R"({"success":true,"message":"done"})", {}, ""};
        }) {}
  [[nodiscard]] std::string url() const { return server_.url(); }

  std::string model_path = "/served", version = "default";
  double started = 1.25;  // another process has another
  bool paused = false, refuses = false;
  std::vector<std::string> calls, loaded;

 private:
  HttpServer server_;
};

TEST_F(AgentEnginesTest, SglangLoadsWhatChangedIfItHoldsTheVersionBefore) {
  SglangFiles engine;
  DiskVersions versions;
  versions.checkpoint = "/local/model";
  const auto publish = [&](std::int64_t version, std::uint64_t from) {
    versions.holds = identity(version);
    versions.changed = "/local/model.changed/v00000" + std::to_string(version);
    versions.changed_from = from;
  };
  std::vector<std::string> checked;
  const auto make = [&] {
    return make_engine_session(make_sglang_disk_transport(link(engine.url()), versions,
                                                          [&](const std::string& path) -> Status {
                                                            checked.push_back(path);
                                                            return {};
                                                          }),
                               options_of(kRun));
  };
  const auto session = make();
  publish(1, 0);
  EXPECT_EQ(*session->update(1, times_), 1U);
  EXPECT_EQ(engine.loaded.back(), "/local/model") << "nobody knows what it holds";
  publish(2, 1);
  EXPECT_EQ(*session->update(2, times_), 2U);
  EXPECT_EQ(engine.loaded.back(), "/local/model.changed/v000002");
  publish(4, 3);
  EXPECT_EQ(*session->update(4, times_), 4U);
  EXPECT_EQ(engine.loaded.back(), "/local/model") << "it is further behind";
  EXPECT_EQ(checked, std::vector<std::string>{"/served"});
  EXPECT_FALSE(engine.paused);
  publish(5, 4);
  engine.started = 2.5;  // the server was killed, and somebody gave the new one the label
  EXPECT_EQ(*session->update(5, times_), 5U);
  EXPECT_EQ(engine.loaded.back(), "/local/model") << "another process";
  engine.refuses = true;
  publish(6, 5);
  const auto refused = session->update(6, times_);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("left paused"), std::string::npos);
  EXPECT_TRUE(engine.paused) << "it may hold parts of two versions";
  engine.refuses = false;
  EXPECT_EQ(*session->update(6, times_), 6U);
  EXPECT_EQ(engine.loaded.back(), "/local/model");
  EXPECT_FALSE(engine.paused);
}

// Defect 1: run A ended at 8; run B's agent finds "8" and must not believe it.
TEST_F(AgentEnginesTest, SglangsLabelOfAnotherAgentIsNotBelieved) {
  SglangFiles engine;
  engine.version = "8";
  DiskVersions versions;
  versions.checkpoint = "/local/model";
  versions.holds = identity(8);
  const auto session = make_engine_session(
      make_sglang_disk_transport(link(engine.url()), versions,
                                 [](const std::string&) -> Status { return {}; }),
      options_of(kRun));
  EXPECT_EQ(*session->update(8, times_), 8U);
  EXPECT_EQ(engine.loaded, std::vector<std::string>{"/local/model"});
}

TEST_F(AgentEnginesTest, SglangIsNotWrittenToWithAnotherShape) {
  SglangFiles engine;
  DiskVersions versions;
  versions.holds = identity(1);
  const auto session = make_engine_session(
      make_sglang_disk_transport(
          link(engine.url()), versions,
          [](const std::string&) { return error(StatusCode::kWrongLayout, "another shape"); }),
      options_of(kRun));
  EXPECT_EQ(session->update(1, times_).status().code(), StatusCode::kWrongLayout);
  EXPECT_EQ(engine.calls, (std::vector<std::string>{"/model_info", "/server_info"}));
}

// Defect 9.
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

std::string unbase64(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6U | static_cast<std::uint32_t>(digits.find(c));
    held += 6;
    if (held < 8) continue;
    held -= 8;
    out += static_cast<char>(bits >> static_cast<unsigned>(held) & 255U);
  }
  return out;
}

// The JSON in a pickled command.
nlohmann::json command_in(const std::string& base64) {
  const std::string pickle = unbase64(base64);
  std::string json;
  for (std::size_t at = pickle.find("](K") + 2; pickle.at(at) == 'K'; at += 2) {
    json += pickle.at(at + 1);
  }
  return nlohmann::json::parse(json);
}

TEST(SglangCommand, IsAPickleOfOneByteTensor) {
  for (const std::string text : {"", "a", "ab", "abc"}) {
    const nlohmann::json command = {{"phase", "stage"}, {"text", text}};
    EXPECT_EQ(command_in(sglang_command(command)), command);
    const std::string pickle = unbase64(sglang_command(command));
    EXPECT_TRUE(pickle.starts_with("\x80\x02](X")) << "protocol 2, a list";
    EXPECT_NE(pickle.find("driftless.command"), std::string::npos);
    EXPECT_NE(pickle.find("ctorch\nByteTensor\n"), std::string::npos);
    EXPECT_TRUE(pickle.ends_with("e."));
  }
}

// SGLang with our loader: every rank of every stage answers by a file.
class SglangStandIn {
 public:
  SglangStandIn(const std::string& shm, unsigned tensor, unsigned stages)
      : shm_(shm),
        tensor_(tensor),
        stages_(stages),
        versions_(tensor * stages, 0),
        server_([this](const HttpRequest& request) { return answer(request); }) {}
  [[nodiscard]] std::string url() const { return server_.url(); }

  bool paused = false, session = false;
  std::string label = "default", run = kRun;
  int process = 1;
  std::uint64_t published = 5;
  std::vector<std::string> phases;
  std::string answers;
  std::optional<unsigned> refusing;  // this rank does not commit, nor go back
  std::function<bool(const std::string& phase)> restarts;

  void restart() {
    versions_.assign(versions_.size(), 0);
    open_ = paused = session = false;
    label = "default";
    ++process;
  }

 private:
  HttpResponse answer(const HttpRequest& request) {
    const std::size_t begin = request.line.find(' ') + 1;
    const std::string path = request.line.substr(begin, request.line.find(' ', begin) - begin);
    if (path == "/model_info") {
      const nlohmann::json info = {{"model_path", "/m"}, {"weight_version", label}};
      return {200, info.dump(), {}, ""};
    }
    if (path == "/server_info") {
      return {200, nlohmann::json{{"tp_size", tensor_}, {"pp_size", stages_}}.dump(), {}, ""};
    }
    if (path == "/pause_generation") paused = true;
    if (path == "/continue_generation") paused = false;
    if (path == "/begin_weight_update" && std::exchange(session, true)) return refused();
    if (path == "/end_weight_update" && !std::exchange(session, false)) return refused();
    const auto body = nlohmann::json::parse(request.body);
    if (path == "/update_weight_version") label = body.at("new_version");
    if (path == "/update_weights_from_tensor") {
      EXPECT_EQ(body.at("serialized_named_tensors").size(), tensor_);
      const auto command = command_in(body.at("serialized_named_tensors")[0]);
      if (restarts && restarts(command.at("phase"))) restart();
      if (!session) return refused();
      obey(command);
      if (body.contains("weight_version")) label = body.at("weight_version");
    }
    return {200, R"({"success":true,"message":""})", {}, ""};
  }
  static HttpResponse refused() {
    return {400, R"({"success":false,"message":"session"})", {}, ""};
  }

  void obey(const nlohmann::json& command) {
    const std::string phase = command.at("phase");
    phases.push_back(phase);
    answers = shm_ + "/driftless-" + std::to_string(::geteuid()) + "-answers-" +
              command.at("answers").get<std::string>();
    if (phase == "open") open_ = true;
    staged_ = phase == "stage"    ? std::optional(published)
              : phase == "status" ? staged_
                                  : std::nullopt;
    for (unsigned rank = 0; rank < versions_.size(); ++rank) {
      if (phase == "commit" && rank != refusing) {
        versions_[rank] = command.at("version").get<std::uint64_t>();
      }
      const std::uint64_t version = versions_[rank];
      const std::string held = version > 0 ? run : "";
      const nlohmann::json reply = {
          {"nonce", command.at("nonce")},
          {"rank", rank},
          {"process", std::to_string(process) + "-" + std::to_string(rank)},
          {"ok", true},
          {"error", nullptr},
          {"state", !open_    ? "closed"
                    : staged_ ? "staged"
                              : "idle"},
          {"version", version},
          {"staged_version", staged_ ? nlohmann::json(*staged_) : nlohmann::json()},
          {"run", held},
          {"follows", open_ ? run : ""},
          {"digest",
           open_ ? VllmStandIn::digest_of(held, static_cast<std::int64_t>(version)) : ""}};
      std::ofstream(answers + "/rank" + std::to_string(rank) + ".json") << reply.dump();
    }
  }

  std::string shm_;
  unsigned tensor_, stages_;
  std::vector<std::uint64_t> versions_;
  std::optional<std::uint64_t> staged_;
  bool open_ = false;
  HttpServer server_;
};

TEST_F(AgentEnginesTest, SglangsWorkersAnswerByFiles) {
  const TempDir shm(TempDir::Where::kMemory);
  SglangStandIn engine(shm.path(), 2, 1);
  {
    auto transport = make_sglang_transport(link(engine.url()), "loader", 5s, shm.path());
    ASSERT_TRUE(transport.ok());
    const auto session = make_engine_session(std::move(*transport), options_of(kRun));
    const auto reached = session->update(5, times_);
    ASSERT_TRUE(reached.ok()) << reached.status().to_string();
    EXPECT_EQ(*reached, 5U);
    EXPECT_EQ(engine.phases,
              (std::vector<std::string>{"status", "open", "stage", "commit", "status", "status"}));
    EXPECT_FALSE(engine.paused);
    EXPECT_FALSE(engine.session);
    EXPECT_EQ(engine.label, "5");
    EXPECT_TRUE(std::filesystem::exists(engine.answers));
  }
  EXPECT_FALSE(std::filesystem::exists(engine.answers)) << "nothing is left behind";
}

// Defect 4: the ranks of all pipeline stages count, each for itself.
TEST_F(AgentEnginesTest, SglangsPipelineStagesAllAnswer) {
  const TempDir shm(TempDir::Where::kMemory);
  SglangStandIn engine(shm.path(), 2, 2);
  engine.refusing = 3;  // the second rank of the second stage
  auto transport = make_sglang_transport(link(engine.url()), "loader", 5s, shm.path());
  ASSERT_TRUE(transport.ok());
  const auto session = make_engine_session(std::move(*transport), options_of(kRun));
  const auto reached = session->update(5, times_);
  ASSERT_FALSE(reached.ok());
  EXPECT_NE(reached.status().message().find("rank 3"), std::string::npos)
      << reached.status().to_string();
  EXPECT_TRUE(engine.paused);
  EXPECT_EQ(engine.label, "default");
  engine.refusing.reset();
  engine.published = 6;
  ASSERT_TRUE(session->update(6, times_).ok());
  EXPECT_EQ(engine.label, "6");
  EXPECT_FALSE(engine.paused);
}

// Defect 2.
TEST_F(AgentEnginesTest, ARestartedSglangGetsNoLabelOfTheDeadOne) {
  for (const std::string moment : {"stage", "commit", "status"}) {
    const TempDir shm(TempDir::Where::kMemory);
    SglangStandIn engine(shm.path(), 1, 1);
    auto transport = make_sglang_transport(link(engine.url()), "loader", 1s, shm.path());
    ASSERT_TRUE(transport.ok());
    const auto session = make_engine_session(std::move(*transport), options_of(kRun));
    ASSERT_TRUE(session->update(5, times_).ok());
    engine.published = 6;
    int left = moment == "status" ? 2 : 1;  // the question that proves the commit
    engine.restarts = [&](const std::string& phase) { return phase == moment && --left == 0; };
    EXPECT_FALSE(session->update(6, times_).ok()) << moment;
    EXPECT_EQ(engine.label, "default") << moment;
    engine.restarts = nullptr;
    const auto reached = session->update(6, times_);
    ASSERT_TRUE(reached.ok()) << moment << ": " << reached.status().to_string();
    EXPECT_EQ(engine.label, "6");
    EXPECT_FALSE(engine.paused);
  }
}

// A session as told.
class ScriptedSession final : public EngineSession {
 public:
  explicit ScriptedSession(std::function<Result<std::uint64_t>(std::uint64_t)> act)
      : act_(std::move(act)) {}
  Result<std::uint64_t> update(std::uint64_t goal, EngineTimes&) override { return act_(goal); }
  Status close() override {
    ++closed;
    return {};
  }
  static inline std::atomic<int> closed = 0;

 private:
  std::function<Result<std::uint64_t>(std::uint64_t)> act_;
};

TEST(EngineFleetTest, OneThatHangsOrFailsHoldsUpNobody) {
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
  const Deadline deadline = Deadline::after(20s);
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
  bool said = false;
  for (const EngineUpdate& update : fleet.take_updates()) {
    said = said || (update.url == "failing" && !update.status.ok() && update.attempts <= 3);
  }
  EXPECT_TRUE(said);
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
