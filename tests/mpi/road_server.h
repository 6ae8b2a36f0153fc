#pragma once

#include <mpi.h>

namespace driftless::testing {

// Serves calls of rank 0 of `calls` until it is told to quit. `workers`: all ranks but that one.
void serve_road(MPI_Comm calls, MPI_Comm workers);

}  // namespace driftless::testing
