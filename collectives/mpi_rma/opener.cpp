// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/mpi_comms.h"
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/road_kind.h"

namespace driftless {
namespace mpi_rma {
namespace {

Result<OpenRoad> open(const RoadOptions& given, const RoadPlace& place) {
  const auto& settings = options_in<MpiRmaSettings>(given);
  MpiRmaOptions options = settings;
  if (settings.anchor_auto) options.anchor_bytes = place.anchor_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MpiRmaWorld> made,
                             MpiRmaWorld::create(place.mpi->everybody, place.trainers, options));
  // Freeing windows is collective. If close() is not reached, the job is being ended, and they
  // stay.
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

}  // namespace
}  // namespace mpi_rma

constinit const RoadOpener kMpiRmaOpener{.open = mpi_rma::open};

}  // namespace driftless
