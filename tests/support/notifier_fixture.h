// SPDX-License-Identifier: Apache-2.0
// An EngineNotifier against real HTTP on the loopback interface, without pauses and almost without
// waits.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "formats/strict_json.h"
#include "plugin/engines/engine_notifier.h"
#include "support/http_server.h"

namespace driftless::testing {

inline constexpr char kYes[] = R"({"success":true,"message":"done"})";

inline HttpResponse yes(const HttpRequest&) {
  return {200, kYes, std::chrono::milliseconds(0), ""};
}

inline PublishedVersion published(const std::string& dir, std::uint64_t version,
                                  std::vector<std::string> files) {
  PublishedVersion made;
  made.source_dir = dir;
  made.version_dir = concat(dir, "/weight_v00000", version);
  made.version = version;
  made.run = "ab";
  made.digest = concat("d", version);
  made.files = std::move(files);
  return made;
}

inline PublishedVersion version_seven() {
  return published("/shared/run", 7, {"a.safetensors", "b.safetensors"});
}

inline PublishedVersion delta_version(std::uint64_t version) {
  PublishedVersion made = published("/run", version, {"a.safetensors"});
  made.base_version = version - 1;
  return made;
}

inline EngineEndpoint engine_at(const std::string& url,
                                EngineAction action = EngineAction::kUpdateFromDisk) {
  return {.url = url, .action = action, .local_checkpoint_dir = "/local/model"};
}

class EngineNotifierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (EngineNotifier::create({}).status().code() == StatusCode::kUnsupported) {
      GTEST_SKIP() << "built without libcurl";
    }
    options_.timeout = std::chrono::seconds(10);
    options_.retry_wait = std::chrono::milliseconds(1);
    options_.pause = false;
  }
  std::vector<EngineResult> notify(
      std::vector<EngineEndpoint> engines,
      const Deadline& deadline = Deadline::after(std::chrono::seconds(30))) {
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

}  // namespace driftless::testing
