// SPDX-License-Identifier: Apache-2.0
// The contract suite of roads over mpi_rma: receivers are processes, too.
#include "collectives/mpi_rma/mpi_rma_road.h"
#include "mpi/remote_world.h"

namespace driftless::testing {
namespace {

constexpr std::uint64_t kAnchorBytes = std::uint64_t{1} << 26;

Result<RoadEnds> make_ends(MPI_Comm workers, const RemoteWorldOptions& remote) {
  MpiRmaOptions options;
  options.patience = remote.patience;
  options.ring_bytes = remote.ring_bytes;
  options.ring_versions = remote.ring_versions;
  options.anchor_bytes = kAnchorBytes;
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MpiRmaWorld> made,
                             MpiRmaWorld::create(workers, remote.ranks, options));
  const std::shared_ptr<MpiRmaWorld> world = std::move(made);
  RoadEnds ends;
  ends.world = world;
  int rank = 0;
  MPI_Comm_rank(workers, &rank);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(workers, world->publishes() ? 0 : 1, rank, &part);
  if (world->publishes()) {
    DRIFTLESS_ASSIGN_OR_RETURN(ends.group, make_mpi_group(part));
    DRIFTLESS_ASSIGN_OR_RETURN(ends.sender, world->sender());
  }
  MPI_Comm_free(&part);
  ends.receiver = [world = world.get()] { return world->receiver(); };
  return ends;
}

const RoadCase kMpiRma{
    .name = "mpi_rma",
    .make = [](const WorldOptions& options) { return make_remote_world(options, {}); },
    .ring = true};
INSTANTIATE_TEST_SUITE_P(Mpi, RoadContractTest, ::testing::Values(kMpiRma), road_case_name);
INSTANTIATE_TEST_SUITE_P(Mpi, GroupContractTest, ::testing::Values(kMpiRma), road_case_name);

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  return driftless::testing::run_remote_contract(argc, argv, 6, MPI_THREAD_MULTIPLE,
                                                 driftless::testing::make_ends);
}
