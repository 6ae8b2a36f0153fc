// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/pulse.h"

#include "collectives/mpi_rma/mpi_status.h"

namespace driftless::mpi_rma {

Pulse::Pulse(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  if (MPI_Irecv(&unused_, 1, MPI_BYTE, rank, 0, comm, &never_) != MPI_SUCCESS) {
    never_ = MPI_REQUEST_NULL;
  }
}

Pulse::~Pulse() {
  if (never_ == MPI_REQUEST_NULL || !mpi_runs()) return;
  MPI_Cancel(&never_);
  MPI_Wait(&never_, MPI_STATUS_IGNORE);  // of a receive that was cancelled: at once
}

void Pulse::beat() {
  int done = 0;
  MPI_Test(&never_, &done, MPI_STATUS_IGNORE);
}

}  // namespace driftless::mpi_rma
