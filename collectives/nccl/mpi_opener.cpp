// SPDX-License-Identifier: Apache-2.0
#include "collectives/hub/mpi_hub.h"
#include "collectives/mpi_rma/mpi_comms.h"
#include "collectives/nccl/opener.h"

namespace driftless {
namespace nccl {
namespace {

Result<OpenRoad> open_by_mpi(const RoadOptions& options, const RoadPlace& place) {
  const MPI_Comm everybody = place.mpi->everybody;  // rank 0 is the leading trainer
  return open_road(options, place,
                   {[everybody] { return hub::make_mpi_hub(everybody); },
                    [everybody] { return hub::make_mpi_connector(everybody, 0); }});
}

}  // namespace
}  // namespace nccl

constinit const RoadOpener kNcclMpiOpener{.open = nccl::open_by_mpi, .usable = nccl::usable};

}  // namespace driftless
