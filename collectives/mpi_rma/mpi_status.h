// SPDX-License-Identifier: Apache-2.0
// Converts MPI's return codes to statuses. Every communicator and window made here has
// MPI_ERRORS_RETURN, so that a failed call returns and does not end the job.
#pragma once

#include <mpi.h>

#include <string_view>

#include "core/status.h"

namespace driftless::mpi_rma {

// Ok for MPI_SUCCESS; otherwise "<what>: MPI error <code>: <MPI's text>": kNoSpace if MPI lacks
// memory, else kIo.
[[nodiscard]] Status mpi_status(int code, std::string_view what);

// Whether MPI is initialized and not finalized.
[[nodiscard]] bool mpi_runs();

struct DuplicatedComm {
  MPI_Comm comm = MPI_COMM_NULL;
  unsigned rank = 0, size = 0;
};
// A duplicate that returns its errors. Collective. Restores the error handler of `theirs`
// (which may be MPI_ERRORS_ARE_FATAL) afterwards.
[[nodiscard]] Result<DuplicatedComm> duplicate_comm(MPI_Comm theirs, std::string_view what);

}  // namespace driftless::mpi_rma
