// SPDX-License-Identifier: Apache-2.0
// The table of roads. This file alone knows what was built; it is compiled once for every library
// and program that lists roads, and holds nothing else.
#include "plugin/job/roads.h"

#include <array>

#include "plugin/job/on_demand/loaded_library.h"
#include "plugin/job/road_openers.h"

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
constexpr decltype(kFunction) kIfLinked = kLinked ? kFunction : nullptr;
constexpr bool kMpi = DRIFTLESS_HAS_MPI, kHdf5 = DRIFTLESS_HAS_HDF5, kHasNccl = DRIFTLESS_HAS_NCCL,
               kTcp = DRIFTLESS_HAS_OPENSSL, kStore = DRIFTLESS_HAS_OBJECT_STORE;

bool always(const Config&, JobRole) { return true; }
bool if_trainer(const Config&, JobRole role) { return role == JobRole::kTrainer; }

Status tell_shm_end(const Config& config, std::string_view text) {
  return tell_host_shm_end(config.host_shm, text);
}
Result<std::optional<std::string>> hear_shm_end(const Config& config) {
  return hear_host_shm_end(config.host_shm);
}

constexpr std::array kRoads = {
    Road{"loopback", "road inside one process: tests and measurements", kHere},
    Road{"host_shm", "road of shared memory on one host", kHere, open_host_shm_road, nullptr,
         nullptr, nullptr, tell_shm_end, hear_shm_end},
    Road{.name = "shared_fs",
         .help = "road of files: flush, hf_delta, frames",
         .at = kHere,
         .open = open_shared_fs_road,
         .history = shared_fs_history,
         .withdraw_end = withdraw_shared_fs_end,
         .tell_end = tell_shared_fs_end,
         .hear_end = hear_shared_fs_end,
         .takes_groups = true},
    Road{"shared_fs/hdf5", "one file per version through parallel HDF5", kNeedsHdf5,
         kIfLinked<kHdf5, open_hdf5_road>, kIfLinked<kHdf5, hdf5_history>, if_trainer,
         withdraw_shared_fs_end, tell_shared_fs_end, hear_shared_fs_end, "road.layout"},
    Road{.name = "object_store",
         .help = "road of objects: S3 and what speaks like it, HTTP for readers",
         .at = kNeedsStore,
         .open = kIfLinked<kStore, open_object_store_road>,
         .history = kIfLinked<kStore, object_store_history>,
         .withdraw_end = kIfLinked<kStore, withdraw_object_store_end>,
         .tell_end = kIfLinked<kStore, tell_object_store_end>,
         .takes_groups = true,
         .share = kIfLinked<kStore, share_object_store_road>},
    Road{"mpi_rma", "road of MPI one-sided gets", kNeedsMpi, kIfLinked<kMpi, open_mpi_rma_road>,
         nullptr, always},
    Road{"nccl", "road of NCCL broadcasts", kNeedsNccl, kIfLinked<kHasNccl, open_nccl_road>},
    Road{.name = "nccl/tcp",
         .help = "rendezvous of the nccl road over TCP",
         .at = nccl_with(DRIFTLESS_WHY_NOT_OPENSSL),
         .open = kIfLinked<(kHasNccl && kTcp), open_nccl_tcp_road>,
         .key = "road.nccl.rendezvous"},
    Road{.name = "nccl/mpi",
         .help = "rendezvous of the nccl road in one mpirun job",
         .at = nccl_with(DRIFTLESS_WHY_NOT_MPI),
         .open = kIfLinked<(kHasNccl && kMpi), open_nccl_mpi_road>,
         .needs_mpi = always,
         .key = "road.nccl.rendezvous"},
};

constexpr std::array kParts = {
    Part{"engines", "HTTP calls to engines through libcurl", DRIFTLESS_WHY_NOT_CURL},
    Part{"cuda", "work on elements on the GPU", DRIFTLESS_WHY_NOT_CUDA},
    Part{"python", "the module for Megatron", DRIFTLESS_WHY_NOT_PYTHON},
};

}  // namespace

const RoadTable& road_table() {
  static const RoadTable table{build_text(), kRoads, kParts, kNeedsMpi,
                               kIfLinked<kMpi, join_mpi_job>};
  return table;
}

}  // namespace driftless
