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

#include "support/notifier_fixture.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The calls that change something. The begin and the end of a session synchronize the ranks.
std::vector<HttpRequest> posts_of(const HttpServer& server) {
  std::vector<HttpRequest> posts = server.requests();
  std::erase_if(posts, [](const HttpRequest& asked) {
    return !asked.line.starts_with("POST ") ||
           asked.line.find("_weight_update ") != std::string::npos;
  });
  return posts;
}

std::vector<std::string> paths_of(const HttpServer& server) {
  std::vector<std::string> paths;
  for (const HttpRequest& request : posts_of(server)) {
    paths.push_back(request.line.substr(5, request.line.rfind(' ') - 5));
  }
  return paths;
}

bool asks_for(const HttpRequest& request, std::string_view path) {
  return request.line.find(path) != std::string::npos;
}

TEST_F(EngineNotifierTest, PullsThenLoads) {
  HttpServer server(yes);
  const EngineResult result =
      notify({engine_at(server.url() + "/", EngineAction::kPullWeights)})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  const std::vector<HttpRequest> posts = posts_of(server);
  ASSERT_EQ(posts.size(), 2U);
  EXPECT_EQ(posts[0].line, "POST /pull_weights HTTP/1.1");
  EXPECT_EQ(Json::parse(posts[0].body), (Json{{"local_checkpoint_dir", "/local/model"},
                                              {"source_dir", "/shared/run"},
                                              {"target_version", 7}}));
  EXPECT_EQ(posts[1].line, "POST /update_weights_from_disk HTTP/1.1");
  EXPECT_EQ(Json::parse(posts[1].body),
            (Json{{"model_path", "/local/model"}, {"weight_version", "7"}}));
  EXPECT_NE(posts[0].headers.find("Content-Type: application/json"), std::string::npos);
  EXPECT_EQ(posts[0].headers.find("Authorization"), std::string::npos);
}

// SGLang replies to a load as soon as its first rank is done.
TEST_F(EngineNotifierTest, TheRanksMeetAfterALoad) {
  HttpServer server([](const HttpRequest& request) {
    const bool ends = asks_for(request, "/end_weight_update");
    return ends ? HttpResponse{200, R"({"success":false,"message":"rank 1"})", {}, ""}
                : yes(request);
  });
  options_.retries = 0;
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)})[0];
  EXPECT_FALSE(result.status.ok());
  EXPECT_NE(result.status.message().find("until all ranks"), std::string::npos)
      << result.status.to_string();
  HttpServer older([](const HttpRequest& request) {
    return asks_for(request, "_weight_update ") ? HttpResponse{404, "", {}, ""} : yes(request);
  });
  EXPECT_TRUE(notify({engine_at(older.url(), EngineAction::kUpdateFromDisk)})[0].status.ok());
}

TEST_F(EngineNotifierTest, PausesWhileItLoadsAndFlushesBeforeItGoesOn) {
  options_.pause = true;
  int flushes = 0;
  HttpServer server([&flushes](const HttpRequest& request) {
    const bool flush = asks_for(request, "/flush_cache");
    if (flush && ++flushes == 1) return HttpResponse{400, "requests are running", {}, ""};
    if (flush) return HttpResponse{200, "Cache flushed.\n", {}, ""};
    return yes(request);
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kPullWeights)})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(paths_of(server), (std::vector<std::string>{"/pull_weights", "/pause_generation",
                                                        "/update_weights_from_disk", "/flush_cache",
                                                        "/flush_cache", "/continue_generation"}));
}

TEST_F(EngineNotifierTest, AnEngineThatFailsToLoadStaysPausedUntilAVersionGoesThrough) {
  options_.pause = true;
  int loads = 0;
  HttpServer server([&loads](const HttpRequest& request) {
    if (!asks_for(request, "/update_weights") || ++loads > 1) return yes(request);
    return HttpResponse{200, R"({"success":false,"message":"no room"})", {}, ""};
  });
  options_.engines = {engine_at(server.url(), EngineAction::kUpdateFromDisk)};
  const auto notifier = EngineNotifier::create(options_);
  ASSERT_TRUE(notifier.ok());
  PublishedVersion version = version_seven();
  const EngineResult failed = (*notifier)->notify(version, Deadline::after(seconds(30)))[0];
  EXPECT_FALSE(failed.status.ok());
  EXPECT_TRUE(failed.left_paused);
  EXPECT_NE(failed.status.message().find("no room"), std::string::npos);
  EXPECT_NE(failed.status.message().find("left paused"), std::string::npos)
      << failed.status.to_string();
  EXPECT_EQ(paths_of(server),
            (std::vector<std::string>{"/pause_generation", "/update_weights_from_disk",
                                      "/pause_generation"}));
  version.version = 8;
  const EngineResult done = (*notifier)->notify(version, Deadline::after(seconds(30)))[0];
  EXPECT_TRUE(done.status.ok()) << done.status.to_string();
  EXPECT_FALSE(done.left_paused);
  EXPECT_EQ(paths_of(server).back(), "/continue_generation");
}

// The state of its weights is unknown, so it is not resumed.
TEST_F(EngineNotifierTest, AnEngineThatHangsWhileItLoadsStaysPaused) {
  options_.pause = true;
  HttpServer server([](const HttpRequest& request) {
    const bool loads = asks_for(request, "/update_weights");
    return HttpResponse{200, kYes, loads ? seconds(20) : seconds(0), ""};
  });
  const Deadline much_later = Deadline::after(seconds(8));
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)},
                                     Deadline::after(seconds(2)))[0];
  EXPECT_FALSE(much_later.expired());
  EXPECT_TRUE(result.left_paused);
  EXPECT_EQ(paths_of(server).back(), "/update_weights_from_disk");
  EXPECT_NE(result.status.message().find("left paused"), std::string::npos)
      << result.status.to_string();
}

// After the load there is time left for the call that resumes it.
TEST_F(EngineNotifierTest, AnEngineThatDoesNotGoOnIsReported) {
  options_.pause = true;
  HttpServer server([](const HttpRequest& request) {
    return HttpResponse{200, kYes, asks_for(request, "/continue") ? seconds(20) : seconds(0), ""};
  });
  const Deadline much_later = Deadline::after(seconds(8));
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)},
                                     Deadline::after(seconds(2)))[0];
  EXPECT_FALSE(much_later.expired());
  EXPECT_TRUE(result.left_paused);
  EXPECT_EQ(paths_of(server).back(), "/continue_generation");
  EXPECT_NE(result.status.message().find("was not resumed"), std::string::npos)
      << result.status.to_string();
}

TEST_F(EngineNotifierTest, AnEngineThatCannotPauseLoadsAsItIs) {
  options_.pause = true;
  HttpServer server([](const HttpRequest& request) {
    return asks_for(request, "_generation") ? HttpResponse{404, "", {}, ""} : yes(request);
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(paths_of(server),
            (std::vector<std::string>{"/pause_generation", "/update_weights_from_disk"}));
}

TEST_F(EngineNotifierTest, AnEngineThatCannotPauseAndFailsToLoadStillServesAndTheErrorStatesIt) {
  options_.pause = true;
  HttpServer server([](const HttpRequest& request) {
    if (asks_for(request, "_generation")) return HttpResponse{404, "", {}, ""};
    if (!asks_for(request, "/update_weights")) return yes(request);
    return HttpResponse{400, R"({"message":"no"})", {}, ""};
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kUpdateFromDisk)})[0];
  EXPECT_FALSE(result.left_paused);
  EXPECT_NE(result.status.message().find("keeps serving"), std::string::npos)
      << result.status.to_string();
}

TEST_F(EngineNotifierTest, ARefusalIsFinalAndItsTextIsReported) {
  HttpServer server([](const HttpRequest&) {
    return HttpResponse{200, R"({"success":false,"message":"wrong\nbase"})", milliseconds(0), ""};
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kPullWeights)})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kIo);
  EXPECT_NE(result.status.message().find("refused: 'wrong"), std::string::npos);
  EXPECT_EQ(result.status.message().find('\n'), std::string::npos);
  EXPECT_EQ(posts_of(server).size(), 1U);  // nothing is loaded after a pull that was refused
}

TEST_F(EngineNotifierTest, AnEngineWithoutThePullIsNamed) {
  HttpServer server([](const HttpRequest&) {
    return HttpResponse{404, R"({"detail":"Not Found"})", milliseconds(0), ""};
  });
  const EngineResult result = notify({engine_at(server.url(), EngineAction::kPullWeights)})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kUnsupported);
  EXPECT_NE(result.status.message().find("has no /pull_weights"), std::string::npos)
      << result.status.to_string();
}

TEST_F(EngineNotifierTest, AWrongCallIsNotRepeated) {
  HttpServer server([](const HttpRequest&) {
    return HttpResponse{404, R"({"detail":"Not Found"})", milliseconds(0), ""};
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_NE(result.status.message().find("status 404: 'Not Found'"), std::string::npos)
      << result.status.to_string();
  EXPECT_EQ(posts_of(server).size(), 1U);
}

TEST_F(EngineNotifierTest, AFaultOfTheServerIsTriedAgain) {
  int loads = 0;
  HttpServer server([&loads](const HttpRequest& request) {
    const bool fails = asks_for(request, "/update_weights") && ++loads < 3;
    return fails ? HttpResponse{500, "boom", milliseconds(0), ""} : yes(request);
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_TRUE(result.status.ok()) << result.status.to_string();
  EXPECT_EQ(loads, 3);
}

TEST_F(EngineNotifierTest, TriesEnd) {
  options_.retries = 2;
  HttpServer server(
      [](const HttpRequest&) { return HttpResponse{503, "later", milliseconds(0), ""}; });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kIo);
  EXPECT_NE(result.status.message().find("503"), std::string::npos);
  EXPECT_EQ(server.requests().size(), 3U);
}

TEST_F(EngineNotifierTest, AnAddressWithoutAServerIsReported) {
  std::string url;
  {
    const HttpServer server(yes);
    url = server.url();
  }
  options_.retries = 1;
  const EngineResult result = notify({engine_at(url)})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kIo);
  EXPECT_NE(result.status.message().find(url), std::string::npos);
}

TEST_F(EngineNotifierTest, ASlowEngineIsGivenUpAfterTheTimeout) {
  options_.timeout = milliseconds(100);
  options_.retries = 1;
  HttpServer server([](const HttpRequest&) { return HttpResponse{200, kYes, seconds(60), ""}; });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(server.requests().size(), 2U);
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
    HttpServer server([body](const HttpRequest& request) {
      const bool loads = asks_for(request, "/update_weights");
      return HttpResponse{200, loads ? body : "{}", milliseconds(0), ""};
    });
    const EngineResult result = notify({engine_at(server.url())})[0];
    EXPECT_FALSE(result.status.ok()) << body;
    EXPECT_NE(result.status.message().find("/update_weights_from_disk"), std::string::npos)
        << result.status.to_string();
    EXPECT_EQ(posts_of(server).size(), 1U) << body;
  }
}

TEST_F(EngineNotifierTest, AnEndlessReplyIsCutOff) {
  HttpServer server([](const HttpRequest&) {
    return HttpResponse{200, std::string(kMaxEngineReplyBytes, ' ') + kYes, milliseconds(0), ""};
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_EQ(result.status.code(), StatusCode::kCorrupt);
  EXPECT_NE(result.status.message().find("longer"), std::string::npos);
  EXPECT_EQ(server.requests().size(), 1U);
}

TEST_F(EngineNotifierTest, RedirectsAreNotFollowed) {
  const HttpServer elsewhere(yes);
  HttpServer server([&elsewhere](const HttpRequest&) {
    return HttpResponse{307, "", milliseconds(0), "Location: " + elsewhere.url() + "/x\r\n"};
  });
  const EngineResult result = notify({engine_at(server.url())})[0];
  EXPECT_FALSE(result.status.ok());
  EXPECT_NE(result.status.message().find("redirect (status 307)"), std::string::npos);
  EXPECT_TRUE(elsewhere.requests().empty());
}

TEST_F(EngineNotifierTest, EnginesAreIndependentAndCalledAtOnce) {
  // No engine replies before all three were called.
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
  EngineEndpoint driven = engine_at("http://h");
  driven.action.reset();
  for (const EngineEndpoint& engine :
       {engine_at("file:///etc/passwd"), engine_at("host:1"), engine_at("http://h/ x"),
        engine_at("http://h/?a"), engine_at(""), two_lines, nowhere, driven}) {
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
  EXPECT_TRUE(cleanup_version(posix_file_system(), version).ok());  // it is gone already
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
}  // namespace driftless::testing
