// SPDX-License-Identifier: Apache-2.0
// The contract suite of roads over shared_fs with its parts in version.h5: a process for each
// publisher rank, as parallel HDF5 wants it. Receivers read with plain system calls, here in the
// tests' process, which writes nothing.
//
//   mpirun -n 4 mpi_hdf5_contract                                                up to 3 ranks
//   mpirun -n 1 mpi_hdf5_contract : -n 3 mpi_hdf5_contract --threads=serialized  without threads
#include <cstring>

#include "collectives/mpi_rma/mpi_rma_road.h"
#include "collectives/shared_fs/hdf5_container.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "mpi/remote_world.h"

namespace driftless::testing {
namespace {

SharedFsOptions files(const RemoteWorldOptions& remote) {
  SharedFsOptions options;
  options.dir = remote.directory;
  options.patience = remote.patience;
  options.poll_first = std::chrono::milliseconds(1);
  options.poll_longest = std::chrono::milliseconds(5);
  return options;
}

Result<RoadEnds> make_ends(MPI_Comm workers, const RemoteWorldOptions& remote) {
  int rank = 0;
  MPI_Comm_rank(workers, &rank);
  const bool publishes = static_cast<unsigned>(rank) < remote.ranks;
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_split(workers, publishes ? 0 : MPI_UNDEFINED, rank, &made);
  if (!publishes) return RoadEnds();
  RoadEnds ends;
  ends.world = std::shared_ptr<MPI_Comm>(new MPI_Comm(made), [](MPI_Comm* part) {
    MPI_Comm_free(part);
    delete part;
  });
  DRIFTLESS_ASSIGN_OR_RETURN(ends.group, make_mpi_group(made));
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<PartSink> sink, make_hdf5_sink(made, {}));
  DRIFTLESS_ASSIGN_OR_RETURN(ends.sender, make_shared_fs_sender(posix_file_system(), files(remote),
                                                                static_cast<unsigned>(rank),
                                                                remote.ranks, std::move(sink)));
  return ends;
}

std::unique_ptr<RoadWorld> make_world(const WorldOptions& options) {
  return make_remote_world(options, {.receiver =
                                         [](const RemoteWorldOptions& remote) {
                                           return make_shared_fs_receiver(posix_file_system(),
                                                                          files(remote),
                                                                          make_hdf5_reader());
                                         },
                                     .directory = true});
}

const RoadCase kHdf5{.name = "hdf5", .make = make_world};
INSTANTIATE_TEST_SUITE_P(Hdf5, RoadContractTest, ::testing::Values(kHdf5), road_case_name);
INSTANTIATE_TEST_SUITE_P(Hdf5, GroupContractTest, ::testing::Values(kHdf5), road_case_name);

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  const bool serialized = argc > 1 && std::strcmp(argv[1], "--threads=serialized") == 0;
  return driftless::testing::run_remote_contract(
      argc, argv, 2, serialized ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE,
      driftless::testing::make_ends);
}
