// SPDX-License-Identifier: Apache-2.0
// The shares that ranks report, added up.
#include "plugin/engines/engine_shares.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/agent_engines_fixture.h"

namespace driftless::testing {
namespace {

Digest digest(std::uint64_t number) { return Digest{{number, 7 * number}}; }

constexpr const char* kRun = "00000000000000010000000000000002";

// Two ranks: 'a' is divided between them, both hold all of 'b', and only rank 1 has 'c'.
class Shares : public ::testing::Test {
 protected:
  Shares() {
    ranks_[0].shares = {{"a", 4, 10, "left", digest(1), digest(3)},
                        {"b", 6, 6, "all", digest(10), digest(10)}};
    ranks_[0].absent = {"c"};
    ranks_[1].rank = 1;
    ranks_[1].shares = {{"a", 6, 10, "right", digest(2), digest(3)},
                        {"b", 6, 6, "all", digest(10), digest(10)},
                        {"c", 2, 2, "all", digest(100), digest(100)}};
    for (RankShares& rank : ranks_) rank.holds = {kRun, 3, to_hex(digest(113))};
  }
  void expect(ShareVerdict verdict, std::string_view words) const {
    const EngineProof proof = add_up(ranks_);
    EXPECT_EQ(proof.verdict, verdict) << proof.why;
    EXPECT_NE(proof.why.find(words), std::string::npos) << proof.why;
  }

  std::vector<RankShares> ranks_{2};
};

TEST_F(Shares, ReplicasCountOnceAndTheRestAddsUp) {
  const EngineProof proof = add_up(ranks_);
  EXPECT_EQ(proof.verdict, ShareVerdict::kProven) << proof.why;
  EXPECT_EQ(proof.proven, 3U);
  EXPECT_EQ(proof.sum, digest(113));
  EXPECT_EQ(proof.why, "");
}

TEST_F(Shares, AShareThatIsNotWhatItMustBeIsNamed) {
  ranks_[1].shares[0].digest = digest(5);
  expect(ShareVerdict::kDiffers, "tensor 'a': the shares of ranks 0, 1 add up to");
}

TEST_F(Shares, ReplicasMustBeTheSame) {
  ranks_[1].shares[1].digest = digest(11);
  expect(ShareVerdict::kDiffers, "tensor 'b': ranks 0 and 1 hold the same elements");
}

TEST_F(Shares, TensorsThatNoRankHoldsOrReportsAreNotProven) {
  ranks_[1].shares[0].units = 5;
  expect(ShareVerdict::kUnknown, "tensor 'a': the ranks' shares have 9 of its 10 elements");
  ranks_[1].shares.erase(ranks_[1].shares.begin() + 2);
  ranks_[1].absent = {"c"};
  expect(ShareVerdict::kUnknown, "tensor 'c': no rank holds any of it");
}

TEST_F(Shares, WhatARankCannotReadBackIsNotProven) {
  ranks_[1].shares.pop_back();
  ranks_[1].unproven = {{"c", "packed"}};
  expect(ShareVerdict::kUnknown, "tensor 'c': rank 1 cannot read it back: packed");
  ranks_[0].shares[0].digest = digest(9);  // reported even if other shares are unknown
  expect(ShareVerdict::kDiffers, "tensor 'a'");
}

TEST_F(Shares, ARunThatListsNoDigestsIsNotProven) {
  for (RankShares& rank : ranks_) rank.shares[0].manifest.reset();
  expect(ShareVerdict::kUnknown, "tensor 'a': the run does not list its digest");
}

TEST_F(Shares, RanksMustHoldTheSame) {
  ranks_[1].holds.version = 2;
  expect(ShareVerdict::kDiffers, "rank 1");
  ranks_[1].holds.version = kTornVersion;
  expect(ShareVerdict::kDiffers, "rank 1: holds parts of two versions");
  ranks_[1].error = "mismatch: tensor 'a' in parameter 'qkv'";
  expect(ShareVerdict::kDiffers, "rank 1: mismatch: tensor 'a' in parameter 'qkv'");
  ranks_[1].holds = ranks_[0].holds;
  ranks_[1].error = "busy: it is staging";
  expect(ShareVerdict::kUnknown, "rank 1: busy");
}

TEST_F(Shares, TheTensorsMustBeThoseOfTheVersionThatIsNamed) {
  for (RankShares& rank : ranks_) rank.holds.digest = to_hex(digest(114));
  expect(ShareVerdict::kDiffers, "all tensors add up to");
}

TEST_F(Shares, WithoutRanksOrTensorsNothingIsProven) {
  ranks_.clear();
  expect(ShareVerdict::kUnknown, "no rank answered");
  ranks_.resize(1);
  expect(ShareVerdict::kUnknown, "the ranks hold no tensor");
}

RankReply reply(const Json& shares) {
  RankReply made;
  Json json = {{"shares", shares}, {"unproven", Json::array()}, {"absent", {"z"}}};
  made.text = json.dump();
  return made;
}

TEST(SharesReply, IsParsedStrictly) {
  const std::string hex = to_hex(digest(4));
  const auto good = parse_rank_shares(reply({{"a", 4, 10, "left", hex, ""}}), "here");
  ASSERT_TRUE(good.ok()) << good.status().to_string();
  EXPECT_EQ(good->shares[0].digest, digest(4));
  EXPECT_FALSE(good->shares[0].manifest);
  EXPECT_EQ(good->absent, std::vector<std::string>{"z"});
  for (const Json& bad : std::vector<Json>{{"a", -4, 10, "left", hex, ""},
                                           {"a", 11, 10, "left", hex, ""},
                                           {"a", 4, 10, "left", "xyz", ""},
                                           {"a", 4, 10, "left", hex},
                                           {1, 4, 10, "left", hex, ""},
                                           {"a", 4, "10", "left", hex, ""},
                                           "a"}) {
    EXPECT_EQ(parse_rank_shares(reply({bad}), "here").status().code(), StatusCode::kCorrupt)
        << bad.dump();
  }
  EXPECT_EQ(parse_rank_shares(reply("no list"), "here").status().code(), StatusCode::kCorrupt);
  RankReply silent;
  silent.text = "{}";
  EXPECT_EQ(parse_rank_shares(silent, "here").status().code(), StatusCode::kUnsupported);
  silent.error = "mismatch: it";
  EXPECT_TRUE(parse_rank_shares(silent, "here").ok());
}

// The shares do not add up to the version that the ranks report: no delta is applied on top.
TEST_F(AgentEnginesTest, AnEngineWhoseSharesDoNotAddUpIsNotUpdated) {
  VllmStandIn engine(2);
  const std::string one(32, '1'), two = std::string(15, '0') + "2" + std::string(15, '0') + "2";
  engine.shares = [&](std::size_t rank) {
    return nlohmann::json{{"a", 5, 10, rank == 0 ? "left" : "right", two, one}};
  };
  const auto session = vllm(engine);
  const auto reached = session->update(1, times_);
  ASSERT_FALSE(reached.ok());
  EXPECT_EQ(reached.status().code(), StatusCode::kMismatch);
  EXPECT_NE(reached.status().message().find("tensor 'a'"), std::string::npos)
      << reached.status().to_string();
  EXPECT_EQ(engine.count("rpc:driftless_stage"), 0U);
  expect_all_at(engine, 0);
  engine.shares = nullptr;  // unknown shares delay no update
  EXPECT_TRUE(session->update(1, times_).ok());
}

// A rank could not report its shares at first, because it was still staging for another driver.
TEST_F(AgentEnginesTest, MissingSharesAreRequestedAgain) {
  VllmStandIn engine(2);
  bool silent = true;
  engine.fails = [&](std::size_t rank, const std::string& what) {
    return silent && rank == 1 && what == "shares";
  };
  const auto session = vllm(engine);
  ASSERT_TRUE(session->update(1, times_).ok());
  silent = false;
  const std::string one(32, '1'), two = std::string(15, '0') + "2" + std::string(15, '0') + "2";
  engine.shares = [&](std::size_t rank) {
    return nlohmann::json{{"a", 5, 10, rank == 0 ? "left" : "right", two, one}};
  };
  engine.published = 2;
  EXPECT_EQ(session->update(2, times_).status().code(), StatusCode::kMismatch);
  expect_all_at(engine, 1);
}

}  // namespace
}  // namespace driftless::testing
