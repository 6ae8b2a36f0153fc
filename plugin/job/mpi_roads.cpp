// SPDX-License-Identifier: Apache-2.0
// mpi_rma for a process of a job.
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "plugin/job/mpi_process.h"
#include "plugin/job/road_openers.h"

namespace driftless {

Result<OpenRoad> open_mpi_rma_road(const Config& config, const RoadPlace& place) {
  MpiRmaOptions options = config.mpi_rma;
  if (config.anchor_auto) options.anchor_bytes = place.anchor_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MpiRmaWorld> made,
                             MpiRmaWorld::create(place.mpi->everybody(), place.trainers, options));
  // Freeing windows is collective. If close() is not reached the job is being ended, and they stay.
  const auto world = std::shared_ptr<MpiRmaWorld>(made.release(), [](MpiRmaWorld*) {});
  OpenRoad road;
  road.sender = [world] { return world->sender(); };
  road.receiver = [world] { return world->receiver(); };
  road.close = [world]() -> Status {
    DRIFTLESS_RETURN_IF_ERROR(world->close());
    delete world.get();
    return {};
  };
  road.threads = world->threads();
  return road;
}

}  // namespace driftless
