// SPDX-License-Identifier: Apache-2.0
// Sessions of an agent with stand-ins for engines.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "plugin/engines/engine_http.h"
#include "plugin/engines/engine_session.h"
#include "support/engine_stand_in.h"

namespace driftless::testing {

inline const std::string kRun(32, 'a');

inline EngineIdentity identity(std::int64_t version, const std::string& run = kRun) {
  return {run, version, VllmStandIn::digest_of(run, version)};
}

class AgentEnginesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (check_http().code() == StatusCode::kUnsupported) GTEST_SKIP() << "built without libcurl";
  }
  [[nodiscard]] EngineLink link(const std::string& url,
                                std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
    return {{.url = url}, timeout, &stop_};
  }
  // An agent of this run knows the digests of its versions.
  [[nodiscard]] static EngineSessionOptions options_of(const std::string& run,
                                                       std::uint64_t versions = 9) {
    const auto digests = std::make_shared<VersionDigests>();
    for (std::uint64_t version = 0; version <= versions; ++version) {
      const auto number = static_cast<std::int64_t>(version);
      digests->note(version, *digest_from_hex(VllmStandIn::digest_of(run, number)));
    }
    return {run, "host_shm:test", std::chrono::seconds(2), digests};
  }
  [[nodiscard]] std::unique_ptr<EngineSession> vllm(const VllmStandIn& engine) {
    return make_engine_session(make_vllm_transport(link(engine.url())), options_of(engine.run));
  }
  static void expect_all_at(const VllmStandIn& engine, std::int64_t version) {
    for (const VllmStandIn::Rank& rank : engine.ranks()) EXPECT_EQ(rank.version, version);
    EXPECT_FALSE(engine.paused());
  }

  std::atomic<bool> stop_{false};
  CommitTimes times_;
};

}  // namespace driftless::testing
