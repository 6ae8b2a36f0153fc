// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/mpi_rendezvous.h"
#include "plugin/job/mpi_comms.h"
#include "plugin/job/road_openers.h"

namespace driftless {

Result<OpenRoad> open_nccl_mpi_road(const Config& config, const RoadPlace& place) {
  const MPI_Comm everybody = place.mpi->everybody;  // the leading trainer is its first
  return nccl_road(config.nccl, place,
                   {[everybody] { return nccl::make_mpi_hub(everybody); },
                    [everybody] { return nccl::make_mpi_connector(everybody, 0); }});
}

}  // namespace driftless
