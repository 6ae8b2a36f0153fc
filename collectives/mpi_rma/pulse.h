// SPDX-License-Identifier: Apache-2.0
// Pulse: lets MPI work. MPI_Test of a request that never completes enters MPI's engine every time,
// while MPI_Iprobe may look at the messages only (Open MPI over UCX: 99 times of 100).
#pragma once

#include <mpi.h>

namespace driftless::mpi_rma {

// One thread at a time; several pulses may share a communicator that nobody sends to.
class Pulse {
 public:
  explicit Pulse(MPI_Comm comm);
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;
  void beat();

 private:
  char unused_ = 0;
  MPI_Request never_ = MPI_REQUEST_NULL;
};

}  // namespace driftless::mpi_rma
