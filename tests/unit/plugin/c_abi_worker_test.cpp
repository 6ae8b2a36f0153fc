// SPDX-License-Identifier: Apache-2.0
// driftless.h as a rank of an engine uses it: a driver's calls, and the replies.
#include "plugin/engines/engine_shares.h"
#include "support/c_abi_fixture.h"

namespace driftless::testing {
namespace {

class CAbiWorkerTest : public CAbiTest {
 protected:
  ~CAbiWorkerTest() override { driftless_worker_free(&worker_, 5'000, nullptr); }

  void create(int32_t holds = DRIFTLESS_HOLDS_BASE) {
    auto options = sized<driftless_worker_options>();
    options.rank = 2;
    options.holds = holds;
    options.threads = 1;
    options.user = this;
    options.staged = [](void* user, const char* reply) {
      static_cast<CAbiWorkerTest*>(user)->staged_ = reply;
    };
    ASSERT_EQ(driftless_worker_create(&options, &worker_, error_), DRIFTLESS_OK);
    for (auto& [name, tensor] : held_) {
      const driftless_tensor registered = describe(name, tensor);
      ASSERT_EQ(driftless_worker_register(worker_, &registered, error_), DRIFTLESS_OK)
          << error_.message();
    }
  }
  template <typename Call, typename... Arguments>
  Json call(Call function, Arguments... arguments) {
    char* reply = nullptr;
    EXPECT_EQ(function(worker_, arguments..., "n", &reply, error_), DRIFTLESS_OK)
        << error_.message();
    if (reply == nullptr) return {};
    const auto parsed = Json::parse(take_text(reply));
    EXPECT_EQ(parsed["nonce"], "n");
    EXPECT_EQ(parsed["rank"], 2);
    return parsed;
  }
  Json open(const char* take_over = nullptr) {
    return call(driftless_worker_open, config_.c_str(), nullptr, std::size_t{0}, take_over);
  }
  Json stage(const char* ticket = "t", int64_t wait_ms = 2'000) {
    Json reply = call(driftless_worker_stage, wait_ms, ticket);
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(10'000));
    while (reply["state"] == "staging" && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      reply = call(driftless_worker_status);
    }
    return reply;
  }

  driftless_worker* worker_ = nullptr;
  std::string staged_;
};

TEST_F(CAbiWorkerTest, FollowsVersionByVersionAndBack) {
  trainer_.open();
  create();
  EXPECT_EQ(call(driftless_worker_status)["state"], "closed");
  Json reply = open();
  ASSERT_TRUE(reply["ok"]) << reply;
  EXPECT_EQ(reply["follows"], trainer_.run());
  const std::string base = reply["digest"];
  const Weights before = held_;
  trainer_.step();
  reply = stage();
  ASSERT_EQ(reply["staged_version"], 1) << reply;
  EXPECT_FALSE(call(driftless_worker_commit, int64_t{1}, "late")["ok"]);
  reply = call(driftless_worker_commit, int64_t{1}, "t");
  EXPECT_TRUE(reply["ok"]) << reply;
  EXPECT_EQ(reply["digest"], trainer_.digest());
  EXPECT_TRUE(same(held_, trainer_.weights));
  reply = call(driftless_worker_rollback, int64_t{0});
  EXPECT_EQ(reply["digest"], base);
  EXPECT_TRUE(same(held_, before));
  ASSERT_EQ(stage()["staged_version"], 1);
  EXPECT_TRUE(call(driftless_worker_commit, int64_t{DRIFTLESS_STAGED}, "t")["ok"]);
  EXPECT_EQ(call(driftless_worker_close)["state"], "closed");
  EXPECT_EQ(open()["version"], 1);  // the tensors still hold it
  EXPECT_EQ(driftless_worker_free(&worker_, 1'000, error_), DRIFTLESS_OK);
  EXPECT_EQ(worker_, nullptr);
  EXPECT_EQ(Json::parse(staged_)["staged_version"], 1);
}

// The shares of the ranks, added up as the agent does.
TEST_F(CAbiWorkerTest, ItsSharesProveTheVersion) {
  trainer_.open();
  trainer_.step();
  create();
  ASSERT_TRUE(open()["ok"]);
  ASSERT_EQ(stage()["state"], "staged");
  ASSERT_TRUE(call(driftless_worker_commit, int64_t{1}, "t")["ok"]);
  const Json shares_json = call(driftless_worker_shares, int32_t{1});
  const auto reply = parse_rank_reply(shares_json, "rank");
  ASSERT_TRUE(reply.ok()) << reply.status().to_string();
  const auto shares = parse_rank_shares(*reply, "rank");
  ASSERT_TRUE(shares.ok()) << shares.status().to_string();
  const EngineProof proof = add_up({*shares});
  EXPECT_EQ(proof.verdict, ShareVerdict::kProven) << proof.why;
  EXPECT_EQ(to_hex(proof.sum), trainer_.digest());
  const auto& [name, tensor] = *held_.begin();
  const Json read = call(driftless_worker_read, name.c_str(), uint64_t{0}, uint64_t{2});
  EXPECT_EQ(read["copies"][0][2].get<std::string>().size(), 4 * unit_bytes(tensor.dtype)) << read;
}

TEST_F(CAbiWorkerTest, StagesOnAThreadOfItsOwn) {
  trainer_.open();
  create();
  ASSERT_TRUE(open()["ok"]);
  EXPECT_EQ(call(driftless_worker_stage, int64_t{1'000}, "t")["state"], "staging");
  EXPECT_FALSE(call(driftless_worker_commit, int64_t{1}, "t")["ok"]);
  EXPECT_EQ(driftless_worker_free(&worker_, 0, error_), DRIFTLESS_BUSY);
  ASSERT_NE(worker_, nullptr);
  EXPECT_EQ(driftless_worker_free(&worker_, 10'000, error_), DRIFTLESS_OK) << error_.message();
  EXPECT_EQ(Json::parse(staged_)["state"], "idle");
}

TEST_F(CAbiWorkerTest, WhatHoldsNothingTakesAFullVersion) {
  trainer_.open(true);
  for (auto& [name, tensor] : held_)
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{});
  create(DRIFTLESS_HOLDS_NOTHING);
  ASSERT_TRUE(open()["ok"]);
  ASSERT_EQ(stage()["staged_version"], 0);
  EXPECT_TRUE(call(driftless_worker_commit, int64_t{0}, "t")["ok"]);
  EXPECT_TRUE(same(held_, trainer_.weights));
}

TEST_F(CAbiWorkerTest, WrongCallsAreCodesAndFailuresAreReplies) {
  EXPECT_EQ(driftless_worker_status(worker_, "n", nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(error_.message(), "worker is NULL");
  auto options = sized<driftless_worker_options>();
  options.holds = 7;
  EXPECT_EQ(driftless_worker_create(&options, &worker_, error_), DRIFTLESS_INVALID_ARGUMENT);
  create();
  EXPECT_EQ(driftless_worker_status(worker_, "n", nullptr, error_), DRIFTLESS_INVALID_ARGUMENT);
  char* reply = nullptr;
  EXPECT_EQ(driftless_worker_stage(worker_, -1, nullptr, nullptr, &reply, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(driftless_worker_open(worker_, nullptr, nullptr, 0, nullptr, nullptr, &reply, error_),
            DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_EQ(reply, nullptr);
  const Json refused =
      call(driftless_worker_open, "/nowhere.yaml", nullptr, std::size_t{0}, nullptr);
  EXPECT_FALSE(refused["ok"]);
  EXPECT_NE(refused["error"].get<std::string>().find("/nowhere.yaml"), std::string::npos);
  EXPECT_NE(call(driftless_worker_commit, int64_t{1}, "t")["error"].get<std::string>().find(
                "follows no run"),
            std::string::npos);
  trainer_.open();
  EXPECT_NE(open("not a run")["error"], nullptr);
  ASSERT_TRUE(open()["ok"]);
  const driftless_tensor more = describe(held_.begin()->first, held_.begin()->second);
  EXPECT_EQ(driftless_worker_register(worker_, &more, error_), DRIFTLESS_INVALID_ARGUMENT);
  driftless_worker* gone = worker_;
  ASSERT_EQ(driftless_worker_free(&worker_, 0, error_), DRIFTLESS_OK);
  EXPECT_EQ(driftless_worker_free(&gone, 0, error_), DRIFTLESS_INVALID_ARGUMENT);
  EXPECT_TRUE(error_.contains("worker is not open")) << error_.message();
  EXPECT_EQ(driftless_worker_free(&worker_, 0, error_), DRIFTLESS_OK);
}

}  // namespace
}  // namespace driftless::testing
