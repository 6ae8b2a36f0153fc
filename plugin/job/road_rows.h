// SPDX-License-Identifier: Apache-2.0
// The list of roads. Two files use it: the table of what was built (roads.cpp), and the
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

// The function if it is linked here; null if it is in a library or not built. Then nothing refers
// to the function.
template <bool kLinked, auto kFunction>
inline constexpr std::remove_const_t<decltype(kFunction)> kIfLinked = kLinked ? kFunction : nullptr;

// `Built` says which backends are linked (kHere: this build has any road at all, kMpi, ...), and
// their Availability (kMpiAt, ...). The rows are in the order of the documentation.
template <typename Built>
struct RoadRows {
  static constexpr bool always(JobRole) { return true; }
  static constexpr bool if_trainer(JobRole role) { return role == JobRole::kTrainer; }
  // Needs NCCL and MPI; MPI's library contains both.
  static constexpr Availability kNcclWithMpiAt =
      Built::kNcclAt.why_not.empty()
          ? Availability{Built::kMpiAt.needs,
                         Built::kMpiAt.library.empty() ? Built::kNcclAt.library
                                                       : Built::kMpiAt.library,
                         Built::kMpiAt.why_not}
          : Built::kNcclAt;
  // Needs NCCL and TCP; NCCL's library contains both.
  static constexpr Availability kNcclWithTcpAt =
      Built::kNcclAt.why_not.empty()
          ? Availability{Built::kTcpAt.needs, Built::kNcclAt.library, Built::kTcpAt.why_not}
          : Built::kNcclAt;
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
           .help = "road of objects: S3 and compatible stores, HTTP for readers",
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
           .at = kNcclWithTcpAt,
           .opener = kIfLinked<(Built::kNccl && Built::kTcp), &kNcclHubOpener>,
           .key = "road.nccl.rendezvous",
           .takes_groups = true,
           .knows_starts = true,
           .hash = kDeviceHash},
      Road{.name = "nccl/mpi",
           .help = "rendezvous of the nccl road in one mpirun job",
           .at = kNcclWithMpiAt,
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
