// SPDX-License-Identifier: Apache-2.0
// The communicators of a job that uses MPI. Built only with MPI.
#pragma once

#include <mpi.h>

namespace driftless {

struct MpiComms {
  // All processes except bystanders, trainers first. Null on a bystander.
  MPI_Comm everybody = MPI_COMM_NULL;
  // The processes with this process's role, in the same order.
  MPI_Comm role = MPI_COMM_NULL;
};

}  // namespace driftless
