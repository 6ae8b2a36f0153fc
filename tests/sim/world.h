// SPDX-License-Identifier: Apache-2.0
// The state that the processes of a simulated fleet share: the roads, the truth, and the faults.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "formats/manifest.h"
#include "sim/sim_disk.h"
#include "sim/simulation.h"
#include "sim/truth.h"
#include "support/loopback_road.h"
#include "support/temp_dir.h"

namespace driftless::testing {

inline constexpr std::chrono::milliseconds kPublishDeadline{10'000};
inline constexpr std::chrono::milliseconds kConnectDeadline{5'000};
inline constexpr std::chrono::milliseconds kStageWait{2'000};
inline constexpr std::chrono::milliseconds kFetchDeadline{5'000};
inline constexpr std::chrono::milliseconds kReportDeadline{1'000};
inline constexpr std::chrono::milliseconds kNotifyDeadline{8'000};

inline constexpr const char* kRoad = "/road";

// Empty, and always the same path, so that messages are the same for the same seed.
inline const std::string& new_shm_dir() {
  static const TempDir dir(TempDir::Where::kMemory);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    std::filesystem::remove_all(entry.path(), ignored);
  }
  return dir.path();
}

struct World {
  World(Simulation& simulation_, bool loopback, unsigned ranks_)
      : simulation(simulation_),
        random(simulation_.random_source()),
        ranks(ranks_),
        hub(loopback ? std::make_unique<LoopbackHub>(LoopbackOptions{.ring_versions = 1000}, ranks_)
                     : nullptr) {
    shared_fs.dir = kRoad;
    host_shm.dir = new_shm_dir();
    host_shm.versions = 4;
  }

  Simulation& simulation;
  Random& random;
  const unsigned ranks;              // of the publisher
  std::unique_ptr<LoopbackHub> hub;  // null: the road is a directory of `disk`
  SimDisk disk;
  SharedFsOptions shared_fs;
  DirectoryLayout layout = DirectoryLayout::kFrames;  // of the road
  HostShmOptions host_shm;  // the agent's road to its engines, in memory of this host
  Truth truth;
  double receive_fault_rate = 0;  // of calls of a receiver to its road
  double call_fault_rate = 0;     // of an agent's calls, each way
  bool calm = false;              // roads do not fail any more
  bool ending = false;            // processes leave their loops
  // Another trainer changed the road's contents: a publisher may refuse to continue.
  bool road_is_damaged = false;
  std::uint64_t versions = 0, commits = 0;  // successful ones
  std::uint64_t wipes = 0;                  // how often the road's directory was emptied
  // Faults that a seed may try only if the product keeps the contract (fleet.h).
  bool loader_breaks = false, rolls_back = false;
  bool plain_deltas = false;  // a rollout has a loader, which cannot apply changes of bits
  // The worker of this name claims a version that it does not hold; the check must find that.
  std::string liar;
};

}  // namespace driftless::testing
