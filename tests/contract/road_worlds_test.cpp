// SPDX-License-Identifier: Apache-2.0
// Runs the contract suite on the roads that every build has.
#include "collectives/host_shm/host_shm_road.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "support/loopback_road.h"
#include "support/road_contract.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

class LoopbackWorld : public RoadWorld {
 public:
  explicit LoopbackWorld(const WorldOptions& options)
      : hub_({.ring_bytes = options.ring_bytes,
              .ring_versions = options.ring_versions,
              .patience = options.patience},
             options.ranks) {
    for (unsigned rank = 0; rank < options.ranks; ++rank) {
      senders_.push_back(hub_.sender(rank));
      groups_.push_back(hub_.group(rank));
    }
  }
  [[nodiscard]] unsigned ranks() const override { return static_cast<unsigned>(senders_.size()); }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return *senders_[rank]; }
  [[nodiscard]] Group& group(unsigned rank) override { return *groups_[rank]; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override { return hub_.receiver(); }

 private:
  LoopbackHub hub_;
  std::vector<std::unique_ptr<SendRoad>> senders_;
  std::vector<std::unique_ptr<Group>> groups_;
};

// `packs`: its ranks write into one or two shared files.
class SharedFsWorld : public RoadWorld {
 public:
  explicit SharedFsWorld(const WorldOptions& options, bool packs = false)
      : hub_({}, options.ranks) {
    options_.dir = dir_.file("road");
    options_.patience = options.patience;
    options_.poll_first = std::chrono::milliseconds(1);
    options_.poll_longest = std::chrono::milliseconds(5);
    for (unsigned rank = 0; rank < options.ranks; ++rank) {
      FileSystem& fs = posix_file_system();
      auto sender = make_shared_fs_sender(fs, options_, rank, options.ranks,
                                          packs ? make_part_packs_sink(fs, rank / 2) : nullptr);
      EXPECT_TRUE(is_ok(sender));
      senders_.push_back(std::move(*sender));
      groups_.push_back(hub_.group(rank));
    }
  }
  [[nodiscard]] unsigned ranks() const override { return static_cast<unsigned>(senders_.size()); }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return *senders_[rank]; }
  [[nodiscard]] Group& group(unsigned rank) override { return *groups_[rank]; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override {
    auto receiver = make_shared_fs_receiver(posix_file_system(), options_);
    EXPECT_TRUE(is_ok(receiver));
    return std::move(*receiver);
  }

 private:
  TempDir dir_{TempDir::Where::kMemory};
  SharedFsOptions options_;
  LoopbackHub hub_;  // files provide no group
  std::vector<std::unique_ptr<SendRoad>> senders_;
  std::vector<std::unique_ptr<Group>> groups_;
};

class HostShmWorld : public RoadWorld {
 public:
  explicit HostShmWorld(const WorldOptions& options) : hub_({}, 1), group_(hub_.group(0)) {
    options_.dir = dir_.path();
    options_.size_bytes = options.ring_bytes;
    options_.versions = options.ring_versions;
    options_.patience = options.patience;
    auto sender = make_host_shm_sender(options_);
    EXPECT_TRUE(is_ok(sender));
    sender_ = std::move(*sender);
  }
  [[nodiscard]] unsigned ranks() const override { return 1; }
  [[nodiscard]] SendRoad& sender(unsigned) override { return *sender_; }
  [[nodiscard]] Group& group(unsigned) override { return *group_; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override {
    auto receiver = make_host_shm_receiver(options_);
    EXPECT_TRUE(is_ok(receiver));
    return std::move(*receiver);
  }

 private:
  TempDir dir_{TempDir::Where::kMemory};
  HostShmOptions options_;
  LoopbackHub hub_;  // one process needs no group
  std::unique_ptr<Group> group_;
  std::unique_ptr<SendRoad> sender_;
};

// The road has one sending process.
std::unique_ptr<RoadWorld> make_host_shm_world(const WorldOptions& options) {
  if (options.ranks > 1) return nullptr;
  return std::make_unique<HostShmWorld>(options);
}

template <typename World>
std::unique_ptr<RoadWorld> make_world(const WorldOptions& options) {
  return std::make_unique<World>(options);
}

const RoadCase kLoopback{.name = "loopback", .make = make_world<LoopbackWorld>, .ring = true};
const RoadCase kSharedFs{.name = "shared_fs", .make = make_world<SharedFsWorld>};
const RoadCase kPacks{.name = "shared_fs_packs",
                      .make = [](const WorldOptions& options) -> std::unique_ptr<RoadWorld> {
                        return std::make_unique<SharedFsWorld>(options, true);
                      }};
const RoadCase kHostShm{.name = "host_shm", .make = make_host_shm_world, .ring = true};

INSTANTIATE_TEST_SUITE_P(Roads, RoadContractTest,
                         ::testing::Values(kLoopback, kSharedFs, kPacks, kHostShm), road_case_name);
INSTANTIATE_TEST_SUITE_P(Roads, GroupContractTest, ::testing::Values(kLoopback), road_case_name);

}  // namespace
}  // namespace driftless::testing
