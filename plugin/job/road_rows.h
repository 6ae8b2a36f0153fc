// SPDX-License-Identifier: Apache-2.0
// The list of roads. It is read twice: by the table of what was built (roads.cpp), and by the
// configuration, which has the settings of every road, built or not (config_keys.cpp).
#pragma once

#include <array>

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/nccl/nccl_options.h"
#include "collectives/object_store/object_store_options.h"
#include "collectives/peer/peer_options.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "kernels/device_hash.h"
#include "plugin/job/roads.h"

namespace driftless {

// What is linked here; null: it is in a library, or not built. Then nothing refers to it.
template <bool kLinked, auto kFunction>
inline constexpr std::remove_const_t<decltype(kFunction)> kIfLinked = kLinked ? kFunction : nullptr;

// Of `Built`: whether a backend is linked (kHere: this build has any road at all, kMpi, ...), and
// its Availability (kMpiAt, ...). In the order of the documentation.
template <typename Built>
struct RoadRows {
  static constexpr bool always(JobRole) { return true; }
  static constexpr bool if_trainer(JobRole role) { return role == JobRole::kTrainer; }
  // NCCL and something else, in whose library both are.
  static constexpr Availability nccl_with(const Availability& other) {
    if (!Built::kNcclAt.why_not.empty()) return Built::kNcclAt;
    return {other.needs, other.library.empty() ? Built::kNcclAt.library : other.library,
            other.why_not};
  }
  static constexpr auto kDeviceHash = kIfLinked<Built::kNccl, &device_xxh3_128>;

  static constexpr std::array kRows = {
      Road{.name = "mpi_rma",
           .help = "road of MPI one-sided gets",
           .at = Built::kMpiAt,
           .opener = kIfLinked<Built::kMpi, &kMpiRmaOpener>,
           .needs_mpi = always,
           .kind = &kMpiRmaKind},
      Road{.name = "shared_fs",
           .help = "road of files: flush, hf_delta, frames",
           .opener = kIfLinked<Built::kHere, &kSharedFsOpener>,
           .takes_groups = true,
           .kind = &kSharedFsKind},
      Road{.name = "shared_fs/hdf5",
           .help = "one file per version through parallel HDF5",
           .at = Built::kHdf5At,
           .opener = kIfLinked<Built::kHdf5, &kHdf5Opener>,
           .needs_mpi = if_trainer,
           .key = "road.layout"},
      Road{.name = "object_store",
           .help = "road of objects: S3 and what speaks like it, HTTP for readers",
           .at = Built::kStoreAt,
           .opener = kIfLinked<Built::kStore, &kObjectStoreOpener>,
           .takes_groups = true,
           .kind = &kObjectStoreKind},
      Road{.name = "nccl",
           .help = "road of NCCL broadcasts",
           .at = Built::kNcclAt,
           .opener = kIfLinked<Built::kNccl, &kNcclFileOpener>,
           .takes_groups = true,
           .knows_starts = true,
           .hash = kDeviceHash,
           .kind = &kNcclKind},
      Road{.name = "nccl/hub",
           .help = "rendezvous of the nccl road by the hub, over TCP",
           .at = nccl_with(Built::kTcpAt),
           .opener = kIfLinked<(Built::kNccl && Built::kTcp), &kNcclHubOpener>,
           .key = "road.nccl.rendezvous",
           .takes_groups = true,
           .knows_starts = true,
           .hash = kDeviceHash},
      Road{.name = "nccl/mpi",
           .help = "rendezvous of the nccl road in one mpirun job",
           .at = nccl_with(Built::kMpiAt),
           .opener = kIfLinked<(Built::kNccl && Built::kMpi), &kNcclMpiOpener>,
           .needs_mpi = always,
           .key = "road.nccl.rendezvous",
           .hash = kDeviceHash},
      Road{.name = "peer",
           .help = "road of reads from trainer ranks: shared memory, TCP",
           .at = Built::kTcpAt,
           .opener = kIfLinked<Built::kTcp, &kPeerOpener>,
           .takes_groups = true,
           .knows_starts = true,
           .kind = &kPeerKind},
      Road{.name = "host_shm",
           .help = "road of shared memory on one host",
           .opener = kIfLinked<Built::kHere, &kHostShmOpener>,
           .kind = &kHostShmKind},
  };
};

}  // namespace driftless
