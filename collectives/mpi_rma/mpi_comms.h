// SPDX-License-Identifier: Apache-2.0
// The communicators of a job that MPI joins. Built if MPI is there.
#pragma once

#include <mpi.h>

namespace driftless {

struct MpiComms {
  // All processes but bystanders, trainers first. Null on a bystander.
  MPI_Comm everybody = MPI_COMM_NULL;
  // Those of this process' role, in the same order.
  MPI_Comm role = MPI_COMM_NULL;
};

}  // namespace driftless
