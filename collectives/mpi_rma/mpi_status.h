// SPDX-License-Identifier: Apache-2.0
// MPI's return codes as statuses. Every communicator and window of ours has MPI_ERRORS_RETURN, so
// that a failed call comes back here and does not end the job.
#pragma once

#include <string_view>

#include "core/status.h"

namespace driftless::mpi_rma {

// Ok for MPI_SUCCESS; else "<what>: <MPI's own text>", kNoSpace where MPI lacks memory, kIo
// otherwise.
[[nodiscard]] Status mpi_status(int code, std::string_view what);

// MPI is initialized and not finalized.
[[nodiscard]] bool mpi_runs();

}  // namespace driftless::mpi_rma
