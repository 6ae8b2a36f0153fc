// SPDX-License-Identifier: Apache-2.0
// shared_fs with one HDF5 file per version, which the trainers write together.
#include "collectives/shared_fs/hdf5_container.h"
#include "plugin/job/mpi_comms.h"
#include "plugin/job/road_openers.h"

namespace driftless {

Result<OpenRoad> open_hdf5_road(const Config& config, const RoadPlace& place) {
  OpenRoad road;
  road.sender = [options = config.shared_fs, place]() -> Result<std::unique_ptr<SendRoad>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<PartSink> sink,
                               make_hdf5_sink(place.mpi->role, Hdf5Options()));
    return make_shared_fs_sender(posix_file_system(), options, place.rank, place.trainers,
                                 std::move(sink));
  };
  road.receiver = [config] { return hdf5_history(config); };
  return road;
}

Result<std::unique_ptr<ReceiveRoad>> hdf5_history(const Config& config) {
  return make_shared_fs_receiver(posix_file_system(), config.shared_fs, make_hdf5_reader());
}

}  // namespace driftless
