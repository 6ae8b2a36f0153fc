// SPDX-License-Identifier: Apache-2.0
// The settings of mpi_rma, without MPI headers, so that a configuration can name them even if MPI
// is not built.
#pragma once

#include <chrono>
#include <cstdint>

namespace driftless {

struct MpiRmaOptions {
  // Memory for versions on each publisher rank; each part needs 64 bytes more. Pages become
  // resident when they are used.
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;
  unsigned ring_versions = 64;     // limit for versions held
  std::uint64_t anchor_bytes = 0;  // for each publisher rank's anchor; 0: the road has no anchors
  std::uint64_t announcement_bytes = std::uint64_t{64} << 20;  // space for run_info on the leader
  bool progress_thread = true;  // if gets need the target's help, and MPI allows threads
  std::chrono::milliseconds poll_first{1};
  std::chrono::milliseconds poll_longest{50};
  std::chrono::milliseconds patience{600'000};  // for a receiver that sends no reports
};

// The settings as the configuration stores them.
struct MpiRmaSettings : MpiRmaOptions {
  bool anchor_auto = true;  // anchor_bytes is the size of the base if anchors are on
};
struct RoadKind;
struct RoadOpener;
extern const RoadKind kMpiRmaKind;
extern const RoadOpener kMpiRmaOpener;  // of the library driftless_mpi_rma

}  // namespace driftless
