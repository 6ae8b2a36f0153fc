// SPDX-License-Identifier: Apache-2.0
// Finds the places where an engine's weights differ from a checkpoint, from the replies of its
// ranks.
#include "plugin/engines/engine_places.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/host_kernels.h"
#include "support/temp_dir.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

constexpr std::uint64_t kUnits = 40, kBlockUnits = 16;

// Two ranks that each hold all of the only tensor, "w", in BF16.
class Places : public ::testing::Test, public EngineTransport {
 protected:
  Places() {
    std::mt19937_64 random(3);
    base_["w"] = random_tensor(DType::kBF16, {kUnits}, random);
    write_checkpoint(directory_.path(), base_);
    for (auto& rank : ranks_) rank = base_["w"].bytes;
  }

  // Replies as rank_receiver.py does.
  EngineAnswer carry(const EngineCall& call) override {
    EXPECT_EQ(call.op, EngineOp::kRead);
    EngineAnswer answer;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      RankReply reply;
      reply.rank = static_cast<std::int64_t>(rank);
      reply.text = reply_of(call, ranks_[rank]).dump();
      answer.ranks.push_back(reply);
    }
    return answer;
  }
  [[nodiscard]] const std::string& name() const override { return name_; }

  [[nodiscard]] Json reply_of(const EngineCall& call, const std::vector<std::byte>& held) const {
    Json reply = Json::object();
    if (silent_) return reply;
    if (call.tensor.empty()) {
      const std::string digest = sum(held, 0, kUnits);
      reply["shares"] = Json::array({Json::array({"w", kUnits, kUnits, "all", digest, ""})});
      reply["unproven"] = reply["absent"] = reply["suspects"] = Json::array();
    } else if (call.units == 0) {
      reply["block_units"] = kBlockUnits;
      reply["disagree"] = Json::array();
      for (std::uint64_t at = 0; at < kUnits; at += kBlockUnits) {
        reply["blocks"].push_back(sum(held, at, std::min(kBlockUnits, kUnits - at)));
      }
    } else {
      std::string hex;
      for (std::uint64_t i = 2 * call.first; i < 2 * (call.first + call.units); ++i) {
        hex += concat("0123456789abcdef"[std::to_integer<int>(held[i]) / 16],
                      "0123456789abcdef"[std::to_integer<int>(held[i]) % 16]);
      }
      const Json runs = Json::array({Json::array({call.first, call.units})});
      reply["copies"] = Json::array({Json::array({"p", runs, hex, Json::array()})});
      if (spoil_) spoil_(reply["copies"][0]);
    }
    return reply;
  }
  static std::string sum(const std::vector<std::byte>& held, std::uint64_t first,
                         std::uint64_t units) {
    return to_hex(host_kernels().digest(digest_tensor_key("w"), first * 2,
                                        std::span(held).subspan(first * 2, units * 2)));
  }
  Result<DifferentPlaces> find(std::size_t limit = 16) {
    const auto checkpoint = Checkpoint::open(posix_file_system(), directory_.path());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
    return find_places(*this, *checkpoint, limit, PauseState::kRunning);
  }

  TempDir directory_;
  Weights base_;
  std::array<std::vector<std::byte>, 2> ranks_;
  std::string name_ = "the engine";
  bool silent_ = false;
  std::function<void(Json&)> spoil_;
};

TEST_F(Places, NoneIfAllIsTheSame) {
  const auto found = find();
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_TRUE(found->places.empty() && !found->more && found->not_compared.empty());
}

TEST_F(Places, OfOneReplicaOfBothAndOfTheLastBlock) {
  for (const auto& ranks : std::vector<std::vector<std::int64_t>>{{0}, {1}, {0, 1}}) {
    for (const std::uint64_t unit : {std::uint64_t{0}, std::uint64_t{17}, kUnits - 1}) {
      for (auto& rank : ranks_) rank = base_["w"].bytes;
      for (const std::int64_t rank : ranks) {
        ranks_[static_cast<std::size_t>(rank)][unit * 2] ^= std::byte{4};
      }
      const auto found = find();
      ASSERT_TRUE(found.ok()) << found.status().to_string();
      ASSERT_EQ(found->places.size(), ranks.size());
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        EXPECT_EQ(found->places[i].rank, ranks[i]);
        EXPECT_EQ(found->places[i].position, unit);
        EXPECT_EQ(found->places[i].parameter, "p");
        EXPECT_NE(found->places[i].value, found->places[i].expected);
      }
    }
  }
}

TEST_F(Places, UpToALimit) {
  for (std::byte& each : ranks_[1]) each ^= std::byte{1};
  const auto some = find(5), all = find(kUnits);
  ASSERT_TRUE(some.ok() && all.ok());
  EXPECT_TRUE(some->places.size() == 5 && some->more);
  EXPECT_TRUE(all->places.size() == kUnits && !all->more);
}

TEST_F(Places, RanksThatReportNothingOrInvalidPlaces) {
  ranks_[0][7] ^= std::byte{1};
  const std::vector<std::function<void(Json&)>> spoils{
      [](Json& copy) { copy[1][0][1] = kUnits + 1; },
      [](Json& copy) { copy[1][0][0] = ~std::uint64_t{0}; },
      [](Json& copy) { copy[1][0] = "all"; },
      [](Json& copy) { copy[2] = "xy"; },
      [](Json& copy) { copy[2] = ""; },
      [](Json& copy) { copy[2] = 4; },
      [](Json& copy) { copy = Json::array({"p"}); },
  };
  for (const auto& spoil : spoils) {
    spoil_ = spoil;
    EXPECT_EQ(find().status().code(), StatusCode::kCorrupt) << find().status().to_string();
  }
  silent_ = true;
  EXPECT_EQ(find().status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace driftless::testing
