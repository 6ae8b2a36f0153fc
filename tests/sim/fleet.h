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

struct SeedOptions {
  bool liar = false;  // a worker that claims what it does not hold is among them
};

[[nodiscard]] FleetResult run_fleet(std::uint64_t seed, const SeedOptions& options = {});

}  // namespace driftless::testing
