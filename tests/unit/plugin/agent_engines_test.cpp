// What the agent says to engines, and what it makes of failures, against real HTTP.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "plugin/engines/engine_fleet.h"
#include "plugin/engines/engine_http.h"
#include "plugin/engines/engine_session.h"
#include "plugin/engines/sglang_command.h"
#include "plugin/engines/worker_engine.h"
#include "support/engine_stand_in.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

class AgentEnginesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (check_http().code() == StatusCode::kUnsupported) GTEST_SKIP() << "built without libcurl";
  }
  [[nodiscard]] EngineLink link(const std::string& url, std::chrono::milliseconds timeout = 10s) {
    return {url, "", timeout, stop_};
  }
  [[nodiscard]] std::unique_ptr<EngineSession> vllm(const VllmStandIn& engine) {
    return make_worker_session(make_vllm_engine(link(engine.url())), "road: {kind: host_shm}", 2s);
  }
  static void expect_all_at(const VllmStandIn& engine, std::uint64_t version) {
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
  EXPECT_EQ(engine.weight_version(), "0") << "the version that it serves";
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
  ASSERT_EQ(reached.status().code(), StatusCode::kMismatch);
  EXPECT_NE(reached.status().message().find("left paused"), std::string::npos);
  EXPECT_TRUE(engine.paused());
  EXPECT_TRUE(session->close().ok());
  EXPECT_TRUE(engine.paused()) << "half of each version is never served";
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
    if (broken == "/start_weight_update") {
      EXPECT_EQ(engine.count("rpc:driftless_commit"), 1U) << "a server without sessions";
    } else {
      EXPECT_FALSE(reached.ok()) << broken;
    }
    engine.on = nullptr;
    const auto again = session->update(2, times_);
    if (broken == "/start_weight_update") continue;  // the stand-in commits only in its session
    EXPECT_TRUE(again.ok()) << broken << ": " << again.status().to_string();
    expect_all_at(engine, 2);
    EXPECT_EQ(engine.weight_version(), "2") << broken;
  }
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
  versions.version = 7;
  const auto session = make_vllm_disk_session(link(engine.url()), versions);
  EXPECT_EQ(*session->update(7, times_), 7U);
  EXPECT_EQ(engine.calls(),
            (std::vector<std::string>{"/reset_prefix_cache", "/resume", "/pause",
                                      "rpc:reload_weights", "/reset_prefix_cache", "/resume",
                                      "/weight_info", "/update_weight_version", "/weight_info"}));
  EXPECT_EQ(engine.weight_version(), "7");
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
  bool paused = false, refuses = false;
  std::vector<std::string> calls, loaded;

 private:
  HttpServer server_;
};

TEST_F(AgentEnginesTest, SglangLoadsWhatChangedWhereItHoldsTheVersionBefore) {
  SglangFiles engine;
  DiskVersions versions;
  versions.checkpoint = "/local/model";
  versions.version = 1;
  versions.changed = "/local/model.changed/v000001";
  versions.changed_from = 0;
  std::vector<std::string> checked;
  const auto session = make_sglang_disk_session(link(engine.url()), versions,
                                                [&](const std::string& path) -> Status {
                                                  checked.push_back(path);
                                                  return {};
                                                });
  EXPECT_EQ(*session->update(1, times_), 1U);
  EXPECT_EQ(engine.loaded.back(), "/local/model") << "nobody knows what it holds";
  versions.version = 2;
  versions.changed = "/local/model.changed/v000002";
  versions.changed_from = 1;
  EXPECT_EQ(*session->update(2, times_), 2U);
  EXPECT_EQ(engine.loaded.back(), "/local/model.changed/v000002");
  versions.version = 4;
  versions.changed_from = 3;
  EXPECT_EQ(*session->update(4, times_), 4U);
  EXPECT_EQ(engine.loaded.back(), "/local/model") << "it is further behind";
  EXPECT_EQ(checked, std::vector<std::string>{"/served"});
  EXPECT_FALSE(engine.paused);
  engine.refuses = true;
  versions.version = 5;
  const auto refused = session->update(5, times_);
  EXPECT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("no"), std::string::npos);
  EXPECT_FALSE(engine.paused);
}

TEST_F(AgentEnginesTest, SglangIsNotWrittenToWithAnotherShape) {
  SglangFiles engine;
  DiskVersions versions;
  versions.version = 1;
  const auto session = make_sglang_disk_session(
      link(engine.url()), versions,
      [](const std::string&) { return error(StatusCode::kWrongLayout, "another shape"); });
  EXPECT_EQ(session->update(1, times_).status().code(), StatusCode::kWrongLayout);
  EXPECT_EQ(engine.calls,
            (std::vector<std::string>{"/flush_cache", "/continue_generation", "/model_info"}));
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

TEST_F(AgentEnginesTest, SglangsWorkersAnswerByFiles) {
  std::string answers;
  std::uint64_t version = 0;
  bool paused = false, session_open = false;
  std::string weight_version = "default";
  std::vector<std::string> phases;
  HttpServer server([&](const HttpRequest& request) -> HttpResponse {
    const std::size_t begin = request.line.find(' ') + 1;
    const std::string path = request.line.substr(begin, request.line.find(' ', begin) - begin);
    if (path == "/model_info") {
      const nlohmann::json info = {{"model_path", "/m"}, {"weight_version", weight_version}};
      return {200, info.dump(), {}, ""};
    }
    if (path == "/server_info") return {200, R"({"tp_size":2})", {}, ""};
    if (path == "/pause_generation") paused = true;
    if (path == "/continue_generation") paused = false;
    if (path == "/begin_weight_update") session_open = true;
    if (path == "/end_weight_update") session_open = false;
    const auto body = nlohmann::json::parse(request.body);
    if (path == "/update_weight_version") weight_version = body.at("new_version");
    if (path == "/update_weights_from_tensor") {
      EXPECT_TRUE(paused && session_open);
      EXPECT_EQ(body.at("serialized_named_tensors").size(), 2U);
      const auto command = command_in(body.at("serialized_named_tensors")[0]);
      phases.push_back(command.at("phase"));
      if (command.contains("answers")) answers = command.at("answers");
      if (command.at("phase") == "commit") version = command.at("version");
      for (int rank = 0; rank < 2; ++rank) {
        const nlohmann::json reply = {
            {"nonce", command.at("nonce")},
            {"rank", rank},
            {"ok", true},
            {"error", nullptr},
            {"state", command.at("phase") == "stage" ? "staged" : "idle"},
            {"version", version},
            {"staged_version",
             command.at("phase") == "stage" ? nlohmann::json(5) : nlohmann::json()}};
        std::ofstream(answers + "/rank" + std::to_string(rank) + ".json") << reply.dump();
      }
    }
    return {200, R"({"success":true,"message":""})", {}, ""};
  });
  {
    auto engine = make_sglang_engine(link(server.url()), "loader", 5s);
    ASSERT_TRUE(engine.ok());
    const auto session = make_worker_session(std::move(*engine), "road: {kind: host_shm}", 2s);
    const auto reached = session->update(5, times_);
    ASSERT_TRUE(reached.ok()) << reached.status().to_string();
    EXPECT_EQ(*reached, 5U);
    EXPECT_EQ(phases, (std::vector<std::string>{"open", "stage", "commit"}));
    EXPECT_FALSE(paused);
    EXPECT_FALSE(session_open);
    EXPECT_EQ(weight_version, "5");
    EXPECT_TRUE(std::filesystem::exists(answers));
  }
  EXPECT_FALSE(std::filesystem::exists(answers)) << "nothing is left behind";
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
  EXPECT_EQ(engine.ranks()[0].version, 1U) << "the commit was carried through";
  EXPECT_FALSE(engine.paused());
  engine.published = 2;
  EXPECT_FALSE(session->update(2, times_).ok()) << "nothing new is begun";
  EXPECT_EQ(engine.count("/pause"), 1U);
}

}  // namespace
}  // namespace driftless::testing
