// SPDX-License-Identifier: Apache-2.0
// The farewell over the MPI rendezvous: leader and receiver are threads of one process, which sends
// to itself.
#include <mpi.h>

#include "collectives/hub/mpi_hub.h"
#include "support/nccl_farewell.h"

namespace driftless::testing {
namespace {

// A communicator for each test, so that a test does not receive messages of the one before.
HostRendezvous mpi_rendezvous() {
  const std::shared_ptr<MPI_Comm> job(new MPI_Comm(MPI_COMM_NULL), [](MPI_Comm* made) {
    MPI_Comm_free(made);
    delete made;
  });
  EXPECT_EQ(MPI_Comm_dup(MPI_COMM_WORLD, job.get()), MPI_SUCCESS);
  EXPECT_EQ(MPI_Comm_set_errhandler(*job, MPI_ERRORS_RETURN), MPI_SUCCESS);
  return {[job] { return hub::make_mpi_hub(*job); },
          [job] { return hub::make_mpi_connector(*job, 0); }};
}

const FarewellCase kMpi{.name = "mpi", .meet = [](const TempDir&) { return mpi_rendezvous(); }};
INSTANTIATE_TEST_SUITE_P(NcclMpi, NcclFarewellTest, ::testing::Values(kMpi), farewell_case_name);

}  // namespace
}  // namespace driftless::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  const int failed = RUN_ALL_TESTS();
  MPI_Finalize();
  return failed;
}
