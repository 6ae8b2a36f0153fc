// SPDX-License-Identifier: Apache-2.0
// MPI's return codes as statuses. Every communicator and window of ours has MPI_ERRORS_RETURN, so
// that a failed call comes back here and does not end the job.
#pragma once

#include <mpi.h>

#include <string_view>

#include "core/status.h"

namespace driftless::mpi_rma {

// Ok for MPI_SUCCESS; else "<what>: <MPI's own text>", kNoSpace where MPI lacks memory, kIo
// otherwise.
[[nodiscard]] Status mpi_status(int code, std::string_view what);

// MPI is initialized and not finalized.
[[nodiscard]] bool mpi_runs();

struct OwnComm {
  MPI_Comm comm = MPI_COMM_NULL;
  unsigned rank = 0, size = 0;
};
// A duplicate that returns its errors. Collective. The caller's handler, which may end the job, is
// its own again afterwards.
[[nodiscard]] Result<OwnComm> duplicate_comm(MPI_Comm theirs, std::string_view what);

}  // namespace driftless::mpi_rma
