// SPDX-License-Identifier: Apache-2.0
// The peer road inside one process: trainer ranks and receivers are threads, hub and servers real.
#pragma once

#include "collectives/peer/peer_road.h"
#include "support/loopback_road.h"
#include "support/road_contract.h"
#include "support/tcp_hub.h"
#include "support/temp_dir.h"

namespace driftless::testing {

class PeerWorld final : public RoadWorld {
 public:
  explicit PeerWorld(const WorldOptions& options, PeerCarrier carrier = PeerCarrier::kAuto,
                     const std::string& library = {})
      : groups_from_({}, options.ranks) {
    options_.patience = options.patience;
    options_.ring_bytes = options.ring_bytes;
    options_.ring_versions = options.ring_versions;
    options_.carrier = carrier;
    options_.library = library;
    options_.stall = std::chrono::milliseconds(5'000);
    options_.late = std::chrono::milliseconds(60'000);
    options_.farewell = std::chrono::milliseconds(200);
    options_.hub.token_file = write_token(dir_.file("token"), "a secret of a test's run");
    meet_ = tcp_rendezvous(options_.hub.token_file);
    for (unsigned rank = 0; rank < options.ranks; ++rank) {
      groups_.push_back(groups_from_.group(rank));
      roads_.push_back(make_road(rank, options.ranks));
      auto sender = peer::make_sender(roads_.back());
      EXPECT_TRUE(is_ok(sender));
      senders_.push_back(std::move(*sender));
    }
  }
  // Destroys the leader last: the other ranks end only after it has closed.
  ~PeerWorld() override {
    roads_[0]->board.reset();
    senders_.front().reset();
  }
  [[nodiscard]] unsigned ranks() const override { return static_cast<unsigned>(senders_.size()); }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return *senders_[rank]; }
  [[nodiscard]] Group& group(unsigned rank) override { return *groups_[rank]; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override {
    auto made = peer::make_receiver(make_road(0, 1));
    EXPECT_TRUE(is_ok(made));
    return std::move(*made);
  }
  [[nodiscard]] const std::shared_ptr<peer::Road>& leader() const { return roads_.front(); }
  [[nodiscard]] std::shared_ptr<peer::Road> make_road(unsigned rank, unsigned ranks) const {
    return std::make_shared<peer::Road>(
        peer::Road{.options = options_,
                   .meeting = {meet_.hub, meet_.connector, "the test's leader", "127.0.0.1"},
                   .rank = rank,
                   .ranks = ranks});
  }
  [[nodiscard]] PeerOptions& options() { return options_; }

 private:
  TempDir dir_;
  PeerOptions options_;
  HostRendezvous meet_;
  LoopbackHub groups_from_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::shared_ptr<peer::Road>> roads_;
  std::vector<std::unique_ptr<SendRoad>> senders_;
};

}  // namespace driftless::testing
