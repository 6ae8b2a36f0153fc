// SPDX-License-Identifier: Apache-2.0
// The nccl road over HostFabric inside one process, with publisher ranks and receivers that are
// threads, and a real rendezvous between them.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_road.h"
#include "support/host_fabric.h"
#include "support/loopback_road.h"
#include "support/road_contract.h"
#include "support/shared_receive_road.h"
#include "support/temp_dir.h"

namespace driftless::testing {

struct HostRendezvous {
  std::function<Result<std::unique_ptr<hub::Hub>>()> hub;
  std::function<Result<hub::Connector>()> connector;
};

// Over a directory of its own.
inline HostRendezvous file_rendezvous(const std::string& dir) {
  return {[dir] { return hub::make_file_hub(dir); },
          [dir] { return hub::make_file_connector(dir); }};
}

// Receivers that were there from the start: world.receiver() hands out one after the other.
class HostNcclWorld final : public RoadWorld {
 public:
  HostNcclWorld(const WorldOptions& options, const HostRendezvous& rendezvous, unsigned receivers)
      : hub_({}, options.ranks) {
    options_.patience = options.patience;
    options_.ring_bytes = options.ring_bytes;
    options_.ring_versions = options.ring_versions;
    options_.receivers = receivers;
    auto hub = rendezvous.hub();
    EXPECT_TRUE(is_ok(hub));
    auto leader = nccl::make_leading_sender(options_, options.ranks, fabric(), std::move(*hub));
    EXPECT_TRUE(is_ok(leader));
    senders_.push_back(std::move(*leader));
    for (unsigned rank = 0; rank < options.ranks; ++rank) groups_.push_back(hub_.group(rank));
    for (unsigned rank = 1; rank < options.ranks; ++rank) {
      auto connector = rendezvous.connector();
      EXPECT_TRUE(is_ok(connector));
      senders_.push_back(
          nccl::make_other_sender(options_, rank, options.ranks, fabric(), std::move(*connector)));
    }
    for (unsigned i = 0; i < receivers; ++i) {
      auto connector = rendezvous.connector();
      EXPECT_TRUE(is_ok(connector));
      auto made = nccl::make_receiver(options_, fabric(), std::move(*connector));
      EXPECT_TRUE(is_ok(made));
      receivers_.push_back(std::move(*made));
      idle_.insert(i);
    }
  }
  [[nodiscard]] unsigned ranks() const override { return static_cast<unsigned>(senders_.size()); }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return *senders_[rank]; }
  [[nodiscard]] Group& group(unsigned rank) override { return *groups_[rank]; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override {
    const std::scoped_lock lock(mutex_);
    EXPECT_FALSE(idle_.empty()) << "more receivers than the world has";
    if (idle_.empty()) return nullptr;
    const unsigned chosen = *idle_.begin();
    idle_.erase(idle_.begin());
    return std::make_unique<SharedReceiveRoad>(receivers_[chosen], [this, chosen] {
      const std::scoped_lock back(mutex_);
      idle_.insert(chosen);
    });
  }

 private:
  std::shared_ptr<nccl::Fabric> fabric() {
    return std::make_shared<HostFabric>(meetings_, std::make_shared<FabricFaults>());
  }

  NcclOptions options_;
  LoopbackHub hub_;  // of groups: the road brings none
  std::shared_ptr<HostMeetings> meetings_ = std::make_shared<HostMeetings>();
  std::vector<std::unique_ptr<SendRoad>> senders_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::shared_ptr<ReceiveRoad>> receivers_;  // end before the leader
  std::mutex mutex_;
  std::set<unsigned> idle_;
};

}  // namespace driftless::testing
