// SPDX-License-Identifier: Apache-2.0
// The table of roads. This file alone knows what was built; it is compiled once for every library
// and program that lists roads, and holds nothing else.
#include "plugin/job/roads.h"

#include <array>

#include "collectives/host_shm/host_shm_road.h"
#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/nccl/nccl_options.h"
#include "collectives/object_store/object_store_options.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "kernels/device_hash.h"
#include "plugin/job/job_process.h"
#include "plugin/job/on_demand/loaded_library.h"

namespace driftless {
namespace {

constexpr Availability kHere;
constexpr Availability kNeedsMpi{"MPI", DRIFTLESS_LIBRARY_MPI, DRIFTLESS_WHY_NOT_MPI};
constexpr Availability kNeedsHdf5{"MPI", DRIFTLESS_LIBRARY_HDF5, DRIFTLESS_WHY_NOT_HDF5};
constexpr Availability kNeedsNccl{"NCCL", DRIFTLESS_LIBRARY_NCCL, DRIFTLESS_WHY_NOT_NCCL};
constexpr Availability kNeedsStore{"libcurl, libcrypto and pugixml", DRIFTLESS_LIBRARY_OBJECT_STORE,
                                   DRIFTLESS_WHY_NOT_OBJECT_STORE};
// NCCL and something else.
constexpr Availability nccl_with(std::string_view why_not_other) {
  return kNeedsNccl.why_not.empty()
             ? Availability{kNeedsNccl.needs, kNeedsNccl.library, why_not_other}
             : kNeedsNccl;
}

// What is linked here; null: it is in a library, or not built. Then nothing refers to it.
template <bool kLinked, auto kFunction>
constexpr std::remove_const_t<decltype(kFunction)> kIfLinked = kLinked ? kFunction : nullptr;
constexpr bool kMpi = DRIFTLESS_HAS_MPI, kHdf5 = DRIFTLESS_HAS_HDF5, kHasNccl = DRIFTLESS_HAS_NCCL,
               kTcp = DRIFTLESS_HAS_OPENSSL, kStore = DRIFTLESS_HAS_OBJECT_STORE;
constexpr auto kDeviceHash = kIfLinked<kHasNccl, &device_xxh3_128>;

bool always(JobRole) { return true; }
bool if_trainer(JobRole role) { return role == JobRole::kTrainer; }

constexpr std::array kRoads = {
    Road{"host_shm", "road of shared memory on one host", kHere, &kHostShmOpener},
    Road{.name = "shared_fs",
         .help = "road of files: flush, hf_delta, frames",
         .at = kHere,
         .opener = &kSharedFsOpener,
         .takes_groups = true},
    Road{"shared_fs/hdf5", "one file per version through parallel HDF5", kNeedsHdf5,
         kIfLinked<kHdf5, &kHdf5Opener>, if_trainer, "road.layout"},
    Road{.name = "object_store",
         .help = "road of objects: S3 and what speaks like it, HTTP for readers",
         .at = kNeedsStore,
         .opener = kIfLinked<kStore, &kObjectStoreOpener>,
         .takes_groups = true},
    Road{"mpi_rma", "road of MPI one-sided gets", kNeedsMpi, kIfLinked<kMpi, &kMpiRmaOpener>,
         always},
    Road{.name = "nccl",
         .help = "road of NCCL broadcasts",
         .at = kNeedsNccl,
         .opener = kIfLinked<kHasNccl, &kNcclFileOpener>,
         .hash = kDeviceHash},
    Road{.name = "nccl/tcp",
         .help = "rendezvous of the nccl road over TCP",
         .at = nccl_with(DRIFTLESS_WHY_NOT_OPENSSL),
         .opener = kIfLinked<(kHasNccl && kTcp), &kNcclTcpOpener>,
         .key = "road.nccl.rendezvous",
         .hash = kDeviceHash},
    Road{.name = "nccl/mpi",
         .help = "rendezvous of the nccl road in one mpirun job",
         .at = nccl_with(DRIFTLESS_WHY_NOT_MPI),
         .opener = kIfLinked<(kHasNccl && kMpi), &kNcclMpiOpener>,
         .needs_mpi = always,
         .key = "road.nccl.rendezvous",
         .hash = kDeviceHash},
};

constexpr std::array kParts = {
    Part{"engines", "HTTP calls to engines through libcurl", DRIFTLESS_WHY_NOT_CURL},
    Part{"cuda", "work on elements on the GPU", DRIFTLESS_WHY_NOT_CUDA},
    Part{"python", "the module for Megatron", DRIFTLESS_WHY_NOT_PYTHON},
};

}  // namespace

const RoadTable& road_table() {
  static const RoadTable table{build_text(), kRoads, kParts, kNeedsMpi,
                               kIfLinked<kMpi, &join_mpi_job>};
  return table;
}

}  // namespace driftless
