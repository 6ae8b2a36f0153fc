// SPDX-License-Identifier: Apache-2.0
// Uses the roads of the installed library. Checks that the list has exactly the roads that were
// built, that a world of MPI windows opens in a process that mpirun did not start, and that
// version.h5 has its reader.
#include <cstdio>
#include <string_view>

#include <driftless/plugin/job/roads.h>
#ifdef HAS_MPI_RMA
#include <driftless/collectives/mpi_rma/mpi_rma_road.h>
#endif
#ifdef HAS_HDF5
#include <driftless/collectives/shared_fs/hdf5_container.h>
#endif

namespace {

bool built(std::string_view name) {
  for (const driftless::Backend& backend : driftless::backends()) {
    if (backend.name == name) return backend.built;
  }
  return false;
}

bool mpi_rma_works() {
#ifdef HAS_MPI_RMA
  int granted = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &granted) != MPI_SUCCESS) return false;
  driftless::MpiRmaOptions options;
  options.ring_bytes = 1 << 20;
  const auto world = driftless::MpiRmaWorld::create(MPI_COMM_WORLD, 1, options);
  if (!world.ok()) std::printf("%s\n", world.status().to_string().c_str());
  const bool works = world.ok() && (*world)->publishes() && (*world)->close().ok();
  return MPI_Finalize() == MPI_SUCCESS && works && built("mpi_rma");
#else
  return !built("mpi_rma");
#endif
}

bool hdf5_works() {
#ifdef HAS_HDF5
  return driftless::make_hdf5_reader() != nullptr && built("shared_fs/hdf5");
#else
  return !built("shared_fs/hdf5");
#endif
}

}  // namespace

int main() {
  if (!built("shared_fs") || !hdf5_works() || !mpi_rma_works()) return 1;
  std::printf("roads as built\n");
  return 0;
}
