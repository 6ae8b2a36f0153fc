// SPDX-License-Identifier: Apache-2.0
// The object_store road, held to the contract of roads, over a server that a test started
// (tests/python/test_object_store.py): DRIFTLESS_TEST_S3 is its endpoint, and the bucket "road" is
// there.
#include <cstdlib>

#include "collectives/object_store/object_store_road.h"
#include "core/hash128.h"
#include "support/loopback_road.h"
#include "support/road_contract.h"

namespace driftless::testing {
namespace {

class ObjectStoreWorld : public RoadWorld {
 public:
  ObjectStoreWorld(const WorldOptions& options, std::string endpoint) : hub_({}, options.ranks) {
    options_.url = concat("s3://road/", to_hex(random_hash128()));
    options_.endpoint = std::move(endpoint);
    options_.patience = options.patience;
    options_.poll_first = std::chrono::milliseconds(2);
    options_.poll_longest = std::chrono::milliseconds(20);
    for (unsigned rank = 0; rank < options.ranks; ++rank) {
      auto store = open_object_store(options_);
      EXPECT_TRUE(is_ok(store));
      auto sender = make_object_store_sender(*store, options_, rank, options.ranks);
      EXPECT_TRUE(is_ok(sender));
      senders_.push_back(std::move(*sender));
      groups_.push_back(hub_.group(rank));
    }
  }
  [[nodiscard]] unsigned ranks() const override { return static_cast<unsigned>(senders_.size()); }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return *senders_[rank]; }
  [[nodiscard]] Group& group(unsigned rank) override { return *groups_[rank]; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override {
    auto receiver = make_object_store_receiver(*open_object_store(options_), options_);
    EXPECT_TRUE(is_ok(receiver));
    return std::move(*receiver);
  }

 private:
  ObjectStoreOptions options_;
  LoopbackHub hub_;  // a store brings no group
  std::vector<std::unique_ptr<SendRoad>> senders_;
  std::vector<std::unique_ptr<Group>> groups_;
};

std::unique_ptr<RoadWorld> make_store_world(const WorldOptions& options) {
  const char* const endpoint = std::getenv("DRIFTLESS_TEST_S3");
  if (endpoint == nullptr) return nullptr;
  return std::make_unique<ObjectStoreWorld>(options, endpoint);
}

const RoadCase kObjectStore{.name = "object_store", .make = make_store_world};

INSTANTIATE_TEST_SUITE_P(Stores, RoadContractTest, ::testing::Values(kObjectStore), road_case_name);

}  // namespace
}  // namespace driftless::testing
