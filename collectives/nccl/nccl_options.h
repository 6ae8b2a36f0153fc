// SPDX-License-Identifier: Apache-2.0
// The settings of the nccl road, without CUDA or NCCL: a configuration names them also where these
// are not built.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road_kind.h"

namespace driftless {

// How the processes of the road find each other, and what carries their small messages.
enum class RendezvousKind : unsigned char {
  kMpi,   // one mpirun job
  kHub,   // the hub of the run, over TCP
  kFile,  // a directory that all see
};

struct RendezvousOptions {
  RendezvousKind kind = RendezvousKind::kMpi;
  HubOptions hub = {};
  std::string dir = {};  // file: owned by the user, closed to others
};

struct NcclOptions {
  int device = 0;  // of CUDA
  // What fetch_part() returns: bytes copied down to pinned memory, or as they lie on the device.
  MemoryKind arrival = MemoryKind::kHost;
  // Of the versions that a receiver holds, of each publisher rank; and of one on its rank. While
  // a version travels a receiver needs room for it beside them.
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;
  unsigned ring_versions = 32;  // versions held at most
  unsigned receivers = 0;       // the first publication waits until so many have joined
  std::chrono::milliseconds patience{600'000};  // with a receiver that does not report
  // A peer of whom nothing was heard for so long is gone: it leaves the group.
  std::chrono::milliseconds silence{10'000};
  // Of this start of the trainers, the same on all their ranks: the leader drops a rank of another
  // one. 0: the launcher sees to that.
  std::uint64_t start = 0;
  DeviceHash hash;  // empty: bytes are brought to the host to be hashed
};

// As a configuration has them.
struct NcclSettings : NcclOptions {
  RendezvousOptions rendezvous;
};
extern const RoadKind kNcclKind;
// Of the library driftless_nccl, by the way that processes meet: in a directory, by the hub, by
// MPI.
extern const RoadOpener kNcclFileOpener, kNcclHubOpener, kNcclMpiOpener;

}  // namespace driftless
