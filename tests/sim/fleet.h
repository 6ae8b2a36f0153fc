// SPDX-License-Identifier: Apache-2.0
// A fleet in one process: trainers, rollouts, engines, and an operator who starts, kills and
// disturbs them, all decided by a seed. At the end the faults stop, and every rollout must reach
// the newest version.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/agent.h"
#include "sim/engine.h"
#include "sim/notified_engine.h"
#include "sim/rollout.h"
#include "sim/trainer.h"
#include "sim/world.h"

namespace driftless::testing {

struct FleetResult {
  std::uint64_t seed = 0;
  std::string failure;  // empty: all held
  std::vector<std::string> trace;
  std::uint64_t steps = 0;
  std::uint64_t commits = 0, versions = 0;  // so that a simulation of nothing does not pass
};

// The contracts of the product, which decide what a seed may try. If one is false, the product does
// not keep it yet; `sim_night --contracts all` tries it all the same.
struct Contracts {
  // A version that a receiver is said to hold when it opens is proven, or the receiver refuses.
  bool stored_claims = true;
  // If a loader fails, and its undo fails, too, the target holds no version.
  bool failed_undo = true;
  // After a full version is taken back, a foreign write does not count as a version.
  bool rollbacks = true;

  [[nodiscard]] static Contracts all() { return {true, true, true}; }
};

struct SeedOptions {
  Contracts contracts = {};
  bool liar = false;  // one worker claims a version that it does not hold
};

[[nodiscard]] FleetResult run_fleet(std::uint64_t seed, const SeedOptions& options = {});

}  // namespace driftless::testing
