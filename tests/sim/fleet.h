// SPDX-License-Identifier: Apache-2.0
// A fleet in one process: trainers, rollouts, engines and an operator who starts, kills and
// disturbs them, as a seed says. At the end everything is made whole, and every rollout must get to
// the newest version.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/agent.h"
#include "sim/engine.h"
#include "sim/rollout.h"
#include "sim/told_engine.h"
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

// What the product must hold, and what a seed therefore may try. One that is off here is not kept
// yet; `sim_night --contracts all` tries it all the same.
struct Contracts {
  // A version that a receiver is said to hold when it opens is proven, or the receiver refuses.
  bool stored_claims = true;
  // A loader that fails, and cannot undo it, leaves no version.
  bool failed_undo = true;
  // A full version taken back does not bring back a foreign write as a version.
  bool rollbacks = true;

  [[nodiscard]] static Contracts all() { return {true, true, true}; }
};

struct SeedOptions {
  Contracts contracts = {};
  bool liar = false;  // a worker that claims what it does not hold is among them
};

[[nodiscard]] FleetResult run_fleet(std::uint64_t seed, const SeedOptions& options = {});

}  // namespace driftless::testing
