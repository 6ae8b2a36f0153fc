// SPDX-License-Identifier: Apache-2.0
// How long a sync takes, what it moves and how much memory it needs, by road and encoding: formulae
// over the figures, and nothing measured here. The phases are those of docs/develop/architecture.md
// and follow one another; what overlaps is taken off in the phase that waits for the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/plan/figures.h"
#include "tools/plan/model_shape.h"

namespace driftless {

enum class PlanRoad : unsigned char { kMpiRma, kNccl, kPeer, kSharedFs, kObjectStore };
inline constexpr std::string_view kPlanRoads[] = {"mpi_rma", "nccl", "peer", "shared_fs",
                                                  "object_store"};

struct PlanInput {
  ModelShape model;
  Device device = Device::kGpu;
  // The engines' base is in FP8 blocks. The trainer quantizes on the processor of its host, and
  // compares codes and scales there.
  bool fp8 = false;
  std::string snapshot = "none";  // none, device or pinned; host on a CPU and with fp8
  std::uint64_t tp = 1, pp = 1, ep = 1, dp = 1;  // ep cuts routed experts over tp x dp ranks
  std::uint64_t ranks_per_host = 8;
  std::uint64_t engines = 1, engine_tp = 1;
  double engines_per_host = 1;  // below 1: an engine has GPUs of several hosts
  double link_bytes_per_s = 0;  // of one NIC
  std::uint64_t nics_per_host = 1;
  bool rdma = true;
  double density = 0.01;  // of the trainer's bf16 weights
  bool hand_over = true;  // by an agent and host_shm; false: every receiver is on the road
};

// kInvalidArgument for what cannot be together.
[[nodiscard]] Status check_plan(const PlanInput& input);
// "1Gbit", "400 Gbit/s", "100mbit", "25GB/s": bytes per second.
[[nodiscard]] Result<double> parse_link(std::string_view text);

struct PlanQuantity {
  std::string_view name;
  Term amount;
};

struct PlanRow {
  PlanRoad road = PlanRoad::kMpiRma;
  Encoding encoding = Encoding::kDeltas;
  std::string why_not;                 // empty: it can be; else the rest is empty
  std::vector<PlanQuantity> phases{};  // seconds, in order; the same names in all rows
  std::vector<PlanQuantity> bytes{};
  std::vector<PlanQuantity> memory{};  // bytes
  double seconds = 0;                  // from the beginning until the last engine holds the version
  bool best = false;                   // the least seconds of all rows
};

// A row for each of the roads and encodings that are asked for (none: all). `input` was checked.
[[nodiscard]] std::vector<PlanRow> make_plan(const PlanInput& input, const Figures& figures,
                                             std::optional<PlanRoad> road,
                                             std::optional<Encoding> encoding);

}  // namespace driftless
