// SPDX-License-Identifier: Apache-2.0
// shared_fs with one HDF5 file per version, into which all trainers write.
#include "collectives/mpi_rma/mpi_comms.h"
#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/opener.h"

namespace driftless {
namespace shared_fs {
namespace {

Result<std::unique_ptr<ReceiveRoad>> hdf5_history(const RoadOptions& options) {
  return make_shared_fs_receiver(posix_file_system(), options_in<SharedFsOptions>(options),
                                 make_hdf5_reader());
}

Result<OpenRoad> open_hdf5(const RoadOptions& given, const RoadPlace& place) {
  OpenRoad road;
  road.sender = [options = options_in<SharedFsOptions>(given),
                 place]() -> Result<std::unique_ptr<SendRoad>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<PartSink> sink,
                               make_hdf5_sink(place.mpi->role, Hdf5Options()));
    return make_shared_fs_sender(posix_file_system(), options, place.rank, place.trainers,
                                 std::move(sink));
  };
  road.receiver = [given] { return hdf5_history(given); };
  return road;
}

}  // namespace
}  // namespace shared_fs

constinit const RoadOpener kHdf5Opener{.open = shared_fs::open_hdf5,
                                       .history = shared_fs::hdf5_history,
                                       .withdraw_end = shared_fs::withdraw_end,
                                       .publish_end = shared_fs::publish_end,
                                       .fetch_end = shared_fs::fetch_end,
                                       .signs = shared_fs::signs,
                                       .examine = shared_fs::examine};

}  // namespace driftless
