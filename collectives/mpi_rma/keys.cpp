// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collectives/mpi_rma/mpi_rma_options.h"
#include "collectives/road_kind.h"

namespace driftless {
namespace mpi_rma {
namespace {

using namespace road_key;
#define DRIFTLESS_FIELD(field) DRIFTLESS_ROAD_FIELD(MpiRmaSettings, field)

constexpr std::array kKeys = {
    ring_size<DRIFTLESS_FIELD(ring_bytes)>(),
    ring_versions<DRIFTLESS_FIELD(ring_versions)>(),
    poll_first<DRIFTLESS_FIELD(poll_first)>(),
    poll_longest<DRIFTLESS_FIELD(poll_longest)>(),
    patience<DRIFTLESS_FIELD(patience)>(),
    Rows::auto_key<setting::Size<0, 16 * setting::kTiB>, DRIFTLESS_FIELD(anchor_auto),
                   DRIFTLESS_FIELD(anchor_bytes), true>(
        "road.mpi_rma.anchor_size", setting::kSizeOrAuto,
        "Memory for an anchor on each trainer rank. auto: what the base takes, if anchors are on")
        .once("road.anchor_size"),
    Rows::key<setting::Switch, DRIFTLESS_FIELD(progress_thread)>(
        "road.mpi_rma.progress_thread",
        "Each publisher runs a thread that calls MPI, so that MPI_Get completes on networks "
        "without RDMA")
        .once("road.progress_thread"),
};
#undef DRIFTLESS_FIELD

Status check(const RoadOptions& given, const RoadUse& use) {
  const auto& options = options_in<MpiRmaSettings>(given);
  if (!use.chosen || !use.anchors || options.anchor_auto || options.anchor_bytes > 0) return {};
  return error(StatusCode::kInvalidArgument,
               "road.mpi_rma.anchor_size: 0 leaves no room for what anchors.first, anchors.every "
               "or anchors.by_size ask for: give auto or a size");
}

}  // namespace
}  // namespace mpi_rma

constinit const RoadKind kMpiRmaKind{.name = "mpi_rma",
                                     .defaults = [] { return RoadOptions(MpiRmaSettings()); },
                                     .keys = mpi_rma::kKeys,
                                     .check = mpi_rma::check};

}  // namespace driftless
