// SPDX-License-Identifier: Apache-2.0
// The agent's calls to SGLang, with and without our loader in it, over real HTTP.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "plugin/agent/delivery.h"
#include "plugin/engines/sglang_command.h"
#include "support/agent_engines_fixture.h"
#include "support/receiver_fixture.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

using std::chrono_literals::operator""s;

using AgentSglangTest = AgentEnginesTest;

// SGLang's calls that load files.
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
            const nlohmann::json info = {
                {"model_path", "/served"}, {"tp_size", 1}, {"startup_time", took}};
            return {200, info.dump(), {}, ""};
          }
          if (path == "/pause_generation") paused = true;
          if (path == "/continue_generation") paused = false;
          if (path == "/flush_cache") return {200, "Cache flushed.\n", {}, ""};
          if (path == "/update_weights_from_disk") {
            if (refuses) return {400, R"({"success":false,"message":"no"})", {}, ""};
            const auto body = nlohmann::json::parse(request.body);
            loaded.push_back(body.at("model_path"));
            model_path = loaded.back();
            version = body.at("weight_version");
          }
          return {200, R"({"success":true,"message":"done"})", {}, ""};
        }) {}
  [[nodiscard]] std::string url() const { return server_.url(); }

  std::string model_path = "/served", version = "default";
  double started = 1.25;  // differs between processes
  bool paused = false, refuses = false;
  std::vector<std::string> calls, loaded;

 private:
  HttpServer server_;
};

TEST_F(AgentSglangTest, SglangLoadsWhatChangedIfItHoldsTheVersionBefore) {
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
  engine.started = 2.5;  // the server was killed, and somebody gave the new one this label
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

// Run A ended at version 8. The agent of run B finds the label "8", and must not trust it.
TEST_F(AgentSglangTest, SglangsLabelOfAnotherAgentIsNotBelieved) {
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

TEST_F(AgentSglangTest, SglangIsNotWrittenToWithAnotherShape) {
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

// An engine that joins late, or again, loads the files that lie there. If somebody has restored the
// checkpoint meanwhile, it is not the version that the agent wrote.
TEST_F(ReceiverTest, AnAgentOffersNoCheckpointThatOthersWroteInto) {
  if (check_http().code() == StatusCode::kUnsupported) GTEST_SKIP() << "built without libcurl";
  for (const bool renamed : {false, true}) {
    const TempDir dir(TempDir::Where::kMemory);
    const std::string checkpoint = dir.file("served"), base = dir.file("base");
    LoopbackHub hub{LoopbackOptions{.ring_versions = 8}, 1};
    const auto sender = hub.sender(0);
    const auto road = hub.receiver();
    ASSERT_TRUE(sender->announce(run_info_to_json(run_.info()), soon()).ok());
    write_checkpoint(checkpoint, run_.weights[0]);
    write_checkpoint(base, run_.weights[0]);
    auto target = make_checkpoint_target(posix_file_system(), checkpoint, 1);
    ASSERT_TRUE(target.ok());
    auto delivery = make_checkpoint_delivery(Config(), checkpoint, **target, *road, soon());
    ASSERT_TRUE(delivery.ok()) << delivery.status().to_string();
    send(*sender, run_.step(1));
    const auto delivered = (*delivery)->step(soon());
    ASSERT_TRUE(delivered.ok() && *delivered) << delivered.status().to_string();
    SglangFiles engine;
    engine.model_path = checkpoint;
    const std::atomic<bool> stop{false};
    auto session = (*delivery)->session(EngineKind::kSglang, {{.url = engine.url()}, 10s, &stop});
    ASSERT_TRUE(session.ok());
    CommitTimes times;
    ASSERT_TRUE((*session)->update(1, times).ok());
    engine.started = 2.5;  // it is restarted, and meanwhile:
    engine.version = "default";
    engine.loaded.clear();
    for (const auto& file : std::filesystem::directory_iterator(base)) {
      const std::string to = checkpoint + "/" + file.path().filename().string();
      const std::string first = renamed ? to + ".new" : to;
      std::ofstream(first, std::ios::binary)
          << std::ifstream(file.path(), std::ios::binary).rdbuf();
      if (renamed) std::filesystem::rename(first, to);
    }
    const auto again = (*session)->update(1, times);
    ASSERT_FALSE(again.ok()) << "it got the base for version 1";
    EXPECT_NE(again.status().message().find(".safetensors"), std::string::npos)
        << again.status().to_string();
    EXPECT_TRUE(engine.loaded.empty());
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

// SGLang with our loader: every rank of every stage replies through a file.
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
  std::optional<unsigned> refusing;  // this rank fails to commit and to roll back
  std::string refused_call;          // refused after the label was set
  int lost_ends = 0;                 // ends that are done, but whose replies are lost
  std::function<HttpResponse()>
      ends;  // replies to the end of a session after a commit; it stays open
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
    if (path == refused_call && label == "5") return refused();
    if (path == "/pause_generation") paused = true;
    if (path == "/continue_generation") paused = false;
    if (path == "/begin_weight_update" && std::exchange(session, true)) return refused();
    if (path == "/end_weight_update" && ends && label == std::to_string(published)) return ends();
    if (path == "/end_weight_update" && !std::exchange(session, false)) return refused();
    if (path == "/end_weight_update" && label == "5" && lost_ends-- > 0)
      return {500, R"({"message":"lost"})", {}, ""};
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
      nlohmann::json reply = {
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
      for (const char* key : {"shares", "unproven", "absent"}) {
        if (phase == "shares") reply[key] = nlohmann::json::array();
      }
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

TEST_F(AgentSglangTest, SglangsWorkersAnswerByFiles) {
  const TempDir shm(TempDir::Where::kMemory);
  SglangStandIn engine(shm.path(), 2, 1);
  {
    auto transport = make_sglang_transport(link(engine.url()), "loader", 5s, shm.path());
    ASSERT_TRUE(transport.ok());
    const auto session = make_engine_session(std::move(*transport), options_of(kRun));
    const auto reached = session->update(5, times_);
    ASSERT_TRUE(reached.ok()) << reached.status().to_string();
    EXPECT_EQ(*reached, 5U);
    EXPECT_EQ(engine.phases, (std::vector<std::string>{"status", "open", "shares", "status",
                                                       "stage", "commit", "status", "status"}));
    EXPECT_FALSE(engine.paused);
    EXPECT_FALSE(engine.session);
    EXPECT_EQ(engine.label, "5");
    EXPECT_TRUE(std::filesystem::exists(engine.answers));
  }
  EXPECT_FALSE(std::filesystem::exists(engine.answers)) << "nothing is left behind";
}

// driftless verify --engine while an agent commits.
TEST_F(AgentSglangTest, CallsThatOnlyReadDoNotEndAnUpdateOfOthers) {
  const TempDir shm(TempDir::Where::kMemory);
  SglangStandIn engine(shm.path(), 2, 1);
  auto transport = make_sglang_transport(link(engine.url()), "loader", 5s, shm.path());
  ASSERT_TRUE(transport.ok());
  for (const EngineOp op : {EngineOp::kShares, EngineOp::kRead}) {
    EngineCall ask{.op = op};
    ask.pause = PauseState::kPaused;
    engine.session = true;
    EXPECT_EQ((*transport)->carry(ask).status.code(), StatusCode::kBusy);
    EXPECT_TRUE(engine.session);
    EXPECT_TRUE(engine.phases.empty());
    engine.session = false;
    const EngineAnswer answer = (*transport)->carry(ask);
    EXPECT_TRUE(answer.status.ok()) << answer.status.to_string();
    EXPECT_FALSE(engine.session);
    engine.phases.clear();
  }
}

// The label is set before the session ends, so a right label does not show that the update ended.
TEST_F(AgentSglangTest, AnUpdateWhoseEndFailsIsNoSuccess) {
  for (const bool refuses : {true, false}) {
    const TempDir shm(TempDir::Where::kMemory);
    SglangStandIn engine(shm.path(), 2, 1);
    auto transport = make_sglang_transport(link(engine.url()), "loader", 5s, shm.path());
    ASSERT_TRUE(transport.ok());
    const auto session = make_engine_session(std::move(*transport), options_of(kRun));
    engine.ends = [&]() -> HttpResponse {
      if (refuses) return {400, R"({"success":false,"message":"not this one"})", {}, ""};
      return {500, "boom", {}, ""};
    };
    const auto reached = session->update(5, times_);
    ASSERT_FALSE(reached.ok());
    EXPECT_EQ(engine.label, "5");
    EXPECT_TRUE(engine.paused) << reached.status().to_string();
    EXPECT_NE(reached.status().message().find("not finished"), std::string::npos)
        << reached.status().to_string();
    EXPECT_NE(reached.status().message().find("left paused"), std::string::npos);
    EXPECT_FALSE(session->update(5, times_).ok()) << "nor is the next, while it does not end";
    engine.ends = nullptr;
    const auto again = session->update(5, times_);
    ASSERT_TRUE(again.ok()) << again.status().to_string();
    EXPECT_FALSE(engine.paused);
    EXPECT_FALSE(engine.session);
  }
}

// The ranks of all pipeline stages count, each separately.
TEST_F(AgentSglangTest, SglangsPipelineStagesAllAnswer) {
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

// The label of the server that died is not the label of its successor.
TEST_F(AgentSglangTest, ARestartedSglangGetsNoLabelOfTheDeadOne) {
  for (const std::string moment : {"stage", "commit", "status"}) {
    const TempDir shm(TempDir::Where::kMemory);
    SglangStandIn engine(shm.path(), 1, 1);
    auto transport = make_sglang_transport(link(engine.url()), "loader", 1s, shm.path());
    ASSERT_TRUE(transport.ok());
    const auto session = make_engine_session(std::move(*transport), options_of(kRun));
    ASSERT_TRUE(session->update(5, times_).ok());
    engine.published = 6;
    int left = moment == "status" ? 2 : 1;  // the status call that proves the commit
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

// Loaded weights are usable only after SGLang has ended the update (it packs quantized ones), but
// the label is set before that.
TEST_F(AgentSglangTest, AnUpdateThatSglangDidNotEndIsNotServed) {
  const TempDir shm(TempDir::Where::kMemory);
  SglangStandIn engine(shm.path(), 2, 1);
  engine.refused_call = "/end_weight_update";
  auto transport = make_sglang_transport(link(engine.url()), "loader", 5s, shm.path());
  ASSERT_TRUE(transport.ok());
  const auto session = make_engine_session(std::move(*transport), options_of(kRun));
  const auto reached = session->update(5, times_);
  ASSERT_FALSE(reached.ok()) << "the update is open still";
  EXPECT_NE(reached.status().message().find("left paused"), std::string::npos)
      << reached.status().to_string();
  EXPECT_TRUE(engine.paused);
  EXPECT_TRUE(engine.session);
  engine.refused_call.clear();
  ASSERT_TRUE(session->update(5, times_).ok());
  EXPECT_FALSE(engine.paused);
  EXPECT_FALSE(engine.session);
  EXPECT_EQ(engine.label, "5");
}

TEST_F(AgentSglangTest, AnEndOfAnUpdateWhoseAnswerIsLostIsAnEnd) {
  const TempDir shm(TempDir::Where::kMemory);
  SglangStandIn engine(shm.path(), 2, 1);
  engine.lost_ends = 1;
  auto transport = make_sglang_transport(link(engine.url()), "loader", 5s, shm.path());
  ASSERT_TRUE(transport.ok());
  const auto session = make_engine_session(std::move(*transport), options_of(kRun));
  const auto reached = session->update(5, times_);
  ASSERT_TRUE(reached.ok()) << reached.status().to_string();
  EXPECT_FALSE(engine.paused);
  EXPECT_FALSE(engine.session);
}

}  // namespace
}  // namespace driftless::testing
