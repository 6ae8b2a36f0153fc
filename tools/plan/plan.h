// SPDX-License-Identifier: Apache-2.0
// Computes how long a sync takes, how many bytes it moves and how much memory it needs, by road and
// encoding: formulae over the figures, without measurements. The phases are those of
// docs/develop/architecture.md and follow one another; time that overlaps with another phase is
// subtracted from the phase that waits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/road_kind.h"
#include "tools/plan/figures.h"
#include "tools/plan/model_shape.h"

namespace driftless {

struct PlanInput {
  ModelShape model;
  Device device = Device::kGpu;
  // The engines' base is in FP8 blocks. The trainer quantizes, and compares codes and scales: on
  // its GPU (snapshot: device), or on its host's processor (host).
  bool fp8 = false;
  std::string snapshot = "none";  // none, device or pinned; on a CPU host; with fp8 device or host
  std::uint64_t tp = 1, pp = 1, ep = 1, dp = 1;  // ep splits routed experts over tp x dp ranks
  std::uint64_t ranks_per_host = 8;
  std::uint64_t engines = 1, engine_tp = 1;
  double engines_per_host = 1;  // below 1: an engine uses GPUs of several hosts
  double link_bytes_per_s = 0;  // per NIC
  std::uint64_t nics_per_host = 1;
  bool rdma = true;
  double density = 0.01;  // for the trainer's bf16 weights
  bool hand_over = true;  // by an agent and host_shm; false: every receiver uses the road itself
};

// kInvalidArgument for options that exclude each other.
[[nodiscard]] Status check_plan(const PlanInput& input);
// Parses "1Gbit", "400 Gbit/s", "100mbit", "25GB/s" to bytes per second.
[[nodiscard]] Result<double> parse_link(std::string_view text);

struct PlanQuantity {
  std::string_view name;
  Term amount;
};

struct PlanRow {
  std::string_view road;  // its name
  Encoding encoding = Encoding::kDeltas;
  std::string why_not;  // empty: the row is possible; otherwise the rest of the row is empty
  std::vector<PlanQuantity> phases{};  // in seconds, in order; all rows have the same names
  std::vector<PlanQuantity> bytes{};
  std::vector<PlanQuantity> memory{};  // in bytes
  double seconds = 0;                  // from the start until the last engine holds the version
  bool best = false;                   // the fastest of all rows
};

// The roads between hosts for which there are figures.
[[nodiscard]] std::vector<const RoadKind*> planned_roads();
// Returns a row for each requested road, by its name, and encoding (empty: all). Pass `input`
// through check_plan() first.
[[nodiscard]] std::vector<PlanRow> make_plan(const PlanInput& input, const Figures& figures,
                                             std::string_view road,
                                             std::optional<Encoding> encoding);

}  // namespace driftless
