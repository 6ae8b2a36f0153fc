// SPDX-License-Identifier: Apache-2.0
// The settings of mpi_rma, without MPI: a configuration names them also where MPI is not built.
#pragma once

#include <chrono>
#include <cstdint>

namespace driftless {

struct MpiRmaOptions {
  // Of each publisher rank's versions, 64 more for each part. Resident only as far as it is used.
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;
  unsigned ring_versions = 64;     // versions held at most
  std::uint64_t anchor_bytes = 0;  // of each publisher rank's anchor; 0: the road has none
  std::uint64_t announcement_bytes = std::uint64_t{64} << 20;  // room for run_info on the leader
  bool progress_thread = true;  // if the network needs the target's help, and MPI has threads
  std::chrono::milliseconds poll_first{1};
  std::chrono::milliseconds poll_longest{50};
  std::chrono::milliseconds patience{600'000};  // with a silent receiver
};

// As a configuration has them.
struct MpiRmaSettings : MpiRmaOptions {
  bool anchor_auto = true;  // anchor_bytes: as much as the base takes, if anchors are on
};
struct RoadKind;
struct RoadOpener;
extern const RoadKind kMpiRmaKind;
extern const RoadOpener kMpiRmaOpener;  // of the library driftless_mpi_rma

}  // namespace driftless
