// SPDX-License-Identifier: Apache-2.0
// The settings of the nccl road, without CUDA or NCCL headers, so that a configuration can name
// them even if these are not built.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road_kind.h"

namespace driftless {

// How the processes of the road find each other, and what carries their small messages.
enum class RendezvousKind : unsigned char {
  kMpi,   // one mpirun job
  kHub,   // the hub of the run, over TCP
  kFile,  // a directory that all processes see
};

struct RendezvousOptions {
  RendezvousKind kind = RendezvousKind::kMpi;
  HubOptions hub = {};
  std::string dir = {};  // file: owned by the user, closed to others
};

struct NcclOptions {
  int device = 0;  // number of the CUDA device
  // The memory that fetch_part() returns: bytes copied to pinned host memory, or the bytes on the
  // device.
  MemoryKind arrival = MemoryKind::kHost;
  // Memory for the versions that a receiver holds, for each publisher rank; also the limit for a
  // rank's parts of a version. While a version arrives, a receiver needs more memory for it.
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;
  unsigned ring_versions = 32;                  // limit for versions held
  unsigned receivers = 0;                       // the first publication waits for so many receivers
  std::chrono::milliseconds patience{600'000};  // for a receiver that sends no reports
  // A peer that sends no message for this time leaves the group.
  std::chrono::milliseconds silence{10'000};
  // The number of this start of the trainers, equal on all their ranks: the leader drops ranks of
  // another start. 0: the launcher ensures that there are none.
  std::uint64_t start = 0;
  DeviceHash hash;  // empty: bytes are copied to the host to be hashed
};

// The settings as the configuration stores them.
struct NcclSettings : NcclOptions {
  RendezvousOptions rendezvous;
};
extern const RoadKind kNcclKind;
// Openers of the library driftless_nccl; processes find each other in a directory, through the hub
// or by MPI.
extern const RoadOpener kNcclFileOpener, kNcclHubOpener, kNcclMpiOpener;

}  // namespace driftless
