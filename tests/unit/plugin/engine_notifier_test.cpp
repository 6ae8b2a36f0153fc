// SPDX-License-Identifier: Apache-2.0
// Against real HTTP on the loopback interface.
#include "plugin/engines/engine_notifier.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/http_server.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using driftless::testing::HttpRequest;
using driftless::testing::HttpResponse;
using driftless::testing::HttpServer;
using driftless::testing::TempDir;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kYes[] = R"({"success":true,"message":"done"})";

HttpResponse yes(const HttpRequest&) { return {200, kYes, milliseconds(0), ""}; }

PublishedVersion version_seven() {
  return {"/shared/run", "/shared/run/weight_v000007", 7, {"a.safetensors", "b.safetensors"}, 0,
          false};
}

EngineEndpoint engine_at(const std::string& url,
                         EngineAction action = EngineAction::kUpdateFromDisk) {
  return {url, action, "/local/model", ""};
}

class EngineNotifierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (EngineNotifier::create({}).status().code() == StatusCode::kUnsupported) {
      GTEST_SKIP() << "built without libcurl";
    }
    options_.timeout = seconds(10);
    options_.retry_wait = milliseconds(1);
    options_.pause = false;
  }
  std::vector<EngineResult> notify(std::vector<EngineEndpoint> engines,
                                   const Deadline& deadline = Deadline::after(seconds(30))) {
    options_.engines = std::move(engines);
    Result<std::unique_ptr<EngineNotifier>> notifier = EngineNotifier::create(options_);
    EXPECT_TRUE(notifier.ok()) << notifier.status().to_string();
    std::vector<EngineResult> results = notifier.ok()
                                            ? (*notifier)->notify(version_seven(), deadline)
                                            : std::vector<EngineResult>{};
    EXPECT_EQ(results.size(), options_.engines.size());
    results.resize(options_.engines.size());
    return results;
  }

  NotifyOptions options_;
};

TEST_F(EngineNotifierTest, PullsThenLoads) {
  HttpServer server(yes);
  const EngineResult result =
      notify({engine_at(server.url() + "/", EngineAction::kPullWeights)})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(result.attempts, 2U);
  EXPECT_EQ(result.http_status, 200);
  EXPECT_NE(result.message.find("done"), std::string::npos);
  const std::vector<HttpRequest> requests = server.requests();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].line, "POST /pull_weights HTTP/1.1");
  EXPECT_EQ(json::parse(requests[0].body), (json{{"local_checkpoint_dir", "/local/model"},
                                                 {"source_dir", "/shared/run"},
                                                 {"target_version", 7}}));
  EXPECT_EQ(requests[1].line, "POST /update_weights_from_disk HTTP/1.1");
  EXPECT_EQ(json::parse(requests[1].body),
            (json{{"model_path", "/local/model"}, {"weight_version", "7"}}));
  EXPECT_NE(requests[0].headers.find("Content-Type: application/json"), std::string::npos);
  EXPECT_EQ(requests[0].headers.find("Authorization"), std::string::npos);
}

// The paths that were called.
std::vector<std::string> paths_of(const HttpServer& server) {
  std::vector<std::string> paths;
  for (const HttpRequest& request : server.requests()) {
    const std::size_t space = request.line.find(' ');
    paths.push_back(request.line.substr(space + 1, request.line.rfind(' ') - space - 1));
  }
  return paths;
}

TEST_F(EngineNotifierTest, PausesAndFlushesWhileItLoads) {
  options_.pause = true;
  int flushes = 0;
  HttpServer server([&flushes](const HttpRequest& request) {
    const bool flush = request.line.find("/flush_cache") != std::string::npos;
    if (flush && ++flushes == 1) return HttpResponse{400, "requests are running", {}, ""};
    if (flush) return HttpResponse{200, "Cache flushed.\n", {}, ""};
    return yes(request);
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kPullWeights)})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(paths_of(server),
            (std::vector<std::string>{"/pull_weights", "/pause_generation", "/flush_cache",
                                      "/flush_cache", "/update_weights_from_disk",
                                      "/continue_generation"}));
}

TEST_F(EngineNotifierTest, GenerationGoesOnIfLoadingFails) {
  options_.pause = true;
  HttpServer server([](const HttpRequest& request) {
    if (request.line.find("/update_weights") == std::string::npos) return yes(request);
    return HttpResponse{200, R"({"success":false,"message":"no"})", {}, ""};
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kIo);
  EXPECT_EQ(paths_of(server).back(), "/continue_generation");
}

// Loading leaves time for the call that lets it go on.
TEST_F(EngineNotifierTest, AnEngineThatHangsWhilePausedIsWaitedForOnce) {
  options_.pause = true;
  HttpServer server([](const HttpRequest& request) {
    const bool pauses = request.line.find("/pause") != std::string::npos ||
                        request.line.find("/flush") != std::string::npos;
    return HttpResponse{200, kYes, pauses ? seconds(0) : seconds(20), ""};
  });
  const Deadline much_later = Deadline::after(seconds(8));
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)},
                                     Deadline::after(seconds(2)))[0];
  EXPECT_FALSE(much_later.expired());
  EXPECT_EQ(paths_of(server).back(), "/continue_generation");
  EXPECT_NE(result.status.message().find("generation stays paused"), std::string::npos)
      << result.status.to_string();
}

TEST_F(EngineNotifierTest, AnEngineThatCannotPauseLoadsAsItIs) {
  options_.pause = true;
  HttpServer server([](const HttpRequest& request) {
    return request.line.find("_generation") == std::string::npos ? yes(request)
                                                                 : HttpResponse{404, "", {}, ""};
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(paths_of(server),
            (std::vector<std::string>{"/pause_generation", "/update_weights_from_disk"}));
}

// An engine that reads flush files, and says what it was told last.
class FlushEngine {
 public:
  FlushEngine() : server_([this](const HttpRequest& request) { return answer(request); }) {}
  [[nodiscard]] EngineEndpoint endpoint() const {
    return {server_.url(), EngineAction::kUpdateFlush, "", ""};
  }

  std::string label = "default";
  int failures = 0;  // so many posts fail
  bool acts = true;  // although it fails, it does what it was told
  std::vector<json> posts;

 private:
  HttpResponse answer(const HttpRequest& request) {
    if (request.line.starts_with("GET /model_info")) {
      return {200, json{{"weight_version", label}}.dump(), milliseconds(0), ""};
    }
    const json body = json::parse(request.body);
    const bool fails = failures > 0;
    if (fails) --failures;
    if (!fails || acts) {
      if (body.contains("weight_version")) label = body.at("weight_version");
      if (body.contains("new_version")) label = body.at("new_version");
    }
    posts.push_back(body);
    return fails ? HttpResponse{400, R"({"success":false,"message":"no"})", milliseconds(0), ""}
                 : yes(request);
  }

  HttpServer server_;
};

PublishedVersion delta(std::uint64_t version) {
  return {"/run", concat("/run/weight_v00000", version), version, {"a.safetensors"}, version - 1,
          false};
}

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
  Status tell(const PublishedVersion& version) {
    if (!notifier_) open();
    return notifier_->notify(version, Deadline::after(seconds(30))).at(0).status;
  }
  [[nodiscard]] std::vector<std::string> posted() const {
    std::vector<std::string> names;
    for (const json& post : engine_.posts) {
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
  ASSERT_TRUE(tell(version).ok());
  EXPECT_EQ(engine_.posts, std::vector<json>{(json{{"model_path", "/shared/run/weight_v000007"},
                                                   {"load_format", "delta"},
                                                   {"files", {"a.safetensors", "b.safetensors"}},
                                                   {"weight_version", "7"}})});
}

TEST_F(FlushNotifierTest, WhatWasMissedIsMadeUpForInOrder) {
  ASSERT_TRUE(tell(delta(1)).ok());
  engine_.failures = 2;
  engine_.acts = false;
  EXPECT_FALSE(tell(delta(2)).ok());
  EXPECT_FALSE(tell(delta(3)).ok()) << "3 is not posted on top of 1";
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2", "2"}));
  ASSERT_TRUE(tell(delta(4)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2", "2", "2", "3", "4"}));
  EXPECT_EQ(engine_.label, "4");
}

TEST_F(FlushNotifierTest, APostWhoseAnswerWasLostIsNotRepeated) {
  engine_.failures = 1;
  EXPECT_FALSE(tell(delta(1)).ok());
  ASSERT_TRUE(tell(delta(2)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2"}));
}

TEST_F(FlushNotifierTest, AnEngineThatWasStartedAnewGetsEverything) {
  ASSERT_TRUE(tell(delta(1)).ok());
  ASSERT_TRUE(tell(delta(2)).ok());
  engine_.label = "default";
  ASSERT_TRUE(tell(delta(3)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"1", "2", "1", "2", "3"}));
}

TEST_F(FlushNotifierTest, AnEngineOfAnotherRunGetsNoDelta) {
  engine_.label = "1";
  const Status refused = tell(delta(2));
  EXPECT_EQ(refused.code(), StatusCode::kWrongBase);
  EXPECT_NE(refused.message().find("full version"), std::string::npos);
  EXPECT_TRUE(engine_.posts.empty());
  PublishedVersion full = delta(3);
  full.full = true;
  ASSERT_TRUE(tell(full).ok()) << "a full version helps";
  ASSERT_TRUE(tell(delta(4)).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"3", "4"}));
  EXPECT_FALSE(engine_.posts[0].contains("load_format")) << "it is not posted as a delta";
  EXPECT_FALSE(engine_.posts[0].contains("files"));
}

// Its number was there before the post, so it tells nothing of what came of it.
TEST_F(FlushNotifierTest, ALabelOfAnotherRunWithTheSameNumberProvesNothing) {
  engine_.label = "2";
  engine_.failures = 1;
  engine_.acts = false;
  PublishedVersion full = delta(2);
  full.full = true;
  EXPECT_FALSE(tell(full).ok());
  ASSERT_TRUE(tell(full).ok());
  EXPECT_EQ(posted(), (std::vector<std::string>{"2", "2"})) << "it is posted again";
}

TEST_F(FlushNotifierTest, AnEmptyVersionIsOnlyNamed) {
  PublishedVersion empty = delta(1);
  empty.files.clear();
  ASSERT_TRUE(tell(empty).ok());
  ASSERT_EQ(engine_.posts.size(), 1U);
  EXPECT_FALSE(engine_.posts[0].contains("files"));
  EXPECT_EQ(engine_.posts[0].at("new_version"), "1");
  ASSERT_TRUE(tell(delta(2)).ok());
}

TEST_F(FlushNotifierTest, AnEngineThatSaysAnotherVersionIsNotBelieved) {
  ASSERT_TRUE(tell(delta(1)).ok());
  engine_.label = "7";  // somebody else drives it, too
  EXPECT_EQ(tell(delta(2)).code(), StatusCode::kWrongBase);
  EXPECT_EQ(posted(), std::vector<std::string>{"1"});
}

TEST_F(EngineNotifierTest, ARefusalIsFinalAndItsWordsAreReported) {
  HttpServer server([](const HttpRequest&) {
    return HttpResponse{200, R"({"success":false,"message":"wrong\nbase"})", milliseconds(0), ""};
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kPullWeights)})[0];
  EXPECT_FALSE(result.status.ok());
  EXPECT_EQ(result.attempts, 1U);
  EXPECT_NE(result.message.find("wrong"), std::string::npos);
  EXPECT_EQ(result.message.find('\n'), std::string::npos);
  EXPECT_NE(result.status.message().find("refused"), std::string::npos);
  EXPECT_EQ(server.requests().size(), 1U);  // nothing is loaded after a pull that was refused
}

TEST_F(EngineNotifierTest, AWrongCallIsNotRepeated) {
  HttpServer server([](const HttpRequest&) {
    return HttpResponse{404, R"({"detail":"Not Found"})", milliseconds(0), ""};
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(result.http_status, 404);
  EXPECT_EQ(result.attempts, 1U);
  EXPECT_NE(result.message.find("Not Found"), std::string::npos);
}

TEST_F(EngineNotifierTest, AFaultOfTheServerIsTriedAgain) {
  int calls = 0;
  HttpServer server([&calls](const HttpRequest& request) {
    return ++calls < 3 ? HttpResponse{500, "boom", milliseconds(0), ""} : yes(request);
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(result.attempts, 3U);
  EXPECT_EQ(result.http_status, 200);
}

TEST_F(EngineNotifierTest, TriesEnd) {
  options_.retries = 2;
  HttpServer server(
      [](const HttpRequest&) { return HttpResponse{503, "later", milliseconds(0), ""}; });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kIo);
  EXPECT_EQ(result.http_status, 503);
  EXPECT_EQ(result.attempts, 3U);
}

TEST_F(EngineNotifierTest, NobodyThere) {
  std::string url;
  {
    const HttpServer server(yes);
    url = server.url();
  }
  options_.retries = 1;
  const EngineResult result = notify({engine_at(url)})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kIo);
  EXPECT_NE(result.status.message().find(url), std::string::npos);
  EXPECT_EQ(result.http_status, 0);
  EXPECT_EQ(result.attempts, 2U);
}

TEST_F(EngineNotifierTest, ASlowEngineIsGivenUpAfterTheTimeout) {
  options_.timeout = milliseconds(100);
  options_.retries = 1;
  HttpServer server([](const HttpRequest&) { return HttpResponse{200, kYes, seconds(60), ""}; });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(result.attempts, 2U);
  EXPECT_GE(result.ms, 200.0 - 10.0);
  EXPECT_LT(result.ms, 10'000.0);
}

TEST_F(EngineNotifierTest, TheDeadlineEndsAllTries) {
  options_.retries = 1'000;
  HttpServer server([](const HttpRequest&) { return HttpResponse{200, kYes, seconds(60), ""}; });
  const EngineResult result =
      notify({engine_at(server.url())}, Deadline::after(milliseconds(200)))[0];
  EXPECT_EQ(result.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(result.ms, 10'000.0);
}

TEST_F(EngineNotifierTest, RepliesAreStrictJson) {
  for (const char* body : {"", "ok", "[]", "{}", R"({"success":1})", R"({"success":"true"})",
                           R"({"success":true,"success":true})", R"({"success":true} x)"}) {
    HttpServer server(
        [body](const HttpRequest&) { return HttpResponse{200, body, milliseconds(0), ""}; });
    const EngineResult result = notify({engine_at(server.url())})[0];
    EXPECT_EQ(result.status.code(), StatusCode::kCorrupt) << body;
    EXPECT_EQ(result.attempts, 1U) << body;
  }
}

TEST_F(EngineNotifierTest, AnEndlessReplyIsCutOff) {
  HttpServer server([](const HttpRequest&) {
    return HttpResponse{200, std::string(kMaxEngineReplyBytes, ' ') + kYes, milliseconds(0), ""};
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kCorrupt);
  EXPECT_NE(result.status.message().find("longer"), std::string::npos);
  EXPECT_EQ(result.attempts, 1U);
}

TEST_F(EngineNotifierTest, RedirectsAreNotFollowed) {
  const HttpServer elsewhere(yes);
  HttpServer server([&elsewhere](const HttpRequest&) {
    return HttpResponse{307, "", milliseconds(0), "Location: " + elsewhere.url() + "/x\r\n"};
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_FALSE(result.status.ok());
  EXPECT_EQ(result.http_status, 307);
  EXPECT_TRUE(elsewhere.requests().empty());
}

TEST_F(EngineNotifierTest, EnginesAreIndependentAndCalledAtOnce) {
  // Nobody answers before all three were asked.
  std::atomic<int> asked = 0;
  const auto answer = [&asked](const char* body) {
    return [&asked, body](const HttpRequest&) {
      ++asked;
      const Deadline deadline = Deadline::after(seconds(8));
      while (asked < 3 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(1));
      return HttpResponse{asked < 3 ? 400 : 200, body, milliseconds(0), ""};
    };
  };
  HttpServer first(answer(kYes));
  HttpServer second(answer(R"({"success":false,"message":"no"})"));
  HttpServer third(answer(kYes));
  const std::vector<EngineResult> results =
      notify({engine_at(first.url()), engine_at(second.url()), engine_at(third.url())});
  EXPECT_TRUE(results[0].status.ok());
  EXPECT_FALSE(results[1].status.ok());
  EXPECT_TRUE(results[2].status.ok());
  EXPECT_EQ(results[1].url, second.url());
  EXPECT_FALSE(all_acknowledged(results));
  EXPECT_TRUE(all_acknowledged({results[0], results[2]}));
}

TEST_F(EngineNotifierTest, TheTokenIsSent) {
  HttpServer server(yes);
  EngineEndpoint engine = engine_at(server.url());
  engine.token = "s3cret";
  EXPECT_TRUE(notify({engine})[0].status.ok());
  EXPECT_NE(server.requests().at(0).headers.find("Authorization: Bearer s3cret\r\n"),
            std::string::npos);
}

TEST_F(EngineNotifierTest, EndpointsThatCannotBeCalledAreRefused) {
  EngineEndpoint two_lines = engine_at("http://h");
  two_lines.token = "a\r\nX: y";
  EngineEndpoint nowhere = engine_at("http://h");
  nowhere.local_checkpoint_dir.clear();
  for (const EngineEndpoint& engine :
       {engine_at("file:///etc/passwd"), engine_at("host:1"), engine_at("http://h/ x"),
        engine_at("http://h/?a"), engine_at(""), two_lines, nowhere}) {
    options_.engines = {engine};
    EXPECT_EQ(EngineNotifier::create(options_).status().code(), StatusCode::kInvalidArgument)
        << engine.url;
  }
}

TEST_F(EngineNotifierTest, NoEnginesIsNoWork) { EXPECT_TRUE(notify({}).empty()); }

TEST(CleanupVersion, RemovesAVersionAndNothingElse) {
  const TempDir dir(TempDir::Where::kMemory);
  const std::string version = dir.file("weight_v000007");
  std::filesystem::create_directories(version + "/below");
  std::ofstream(version + "/DONE") << "x";
  std::filesystem::create_directories(dir.file("weight_v000008"));
  std::filesystem::create_directories(dir.file(".weight_v000007.removed"));
  EXPECT_TRUE(cleanup_version(posix_file_system(), version + "/").ok());
  EXPECT_TRUE(cleanup_version(posix_file_system(), version).ok());  // not there any more
  EXPECT_FALSE(std::filesystem::exists(version));
  EXPECT_TRUE(std::filesystem::exists(dir.file("weight_v000008")));
  EXPECT_FALSE(std::filesystem::exists(dir.file(".weight_v000007.removed")));
  for (const std::string& other :
       {dir.path(), std::string("/"), std::string(), dir.file("weight_v"), dir.file("weight_v7x"),
        dir.file("weight_v000008/..")}) {
    EXPECT_EQ(cleanup_version(posix_file_system(), other).code(), StatusCode::kInvalidArgument)
        << other;
  }
  EXPECT_TRUE(std::filesystem::exists(dir.file("weight_v000008")));
}

}  // namespace
}  // namespace driftless
