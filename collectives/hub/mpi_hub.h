// SPDX-License-Identifier: Apache-2.0
// The hub inside one mpirun job (library driftless_hub_mpi). Nothing listens: messages go over the
// job's communicator, with two tags reserved for them.
//
// Threads of the road use the hub and its links, so MPI_THREAD_MULTIPLE is needed: kUnsupported
// without it. Everything made here must be destroyed before MPI_Finalize.
#pragma once

#include <mpi.h>

#include "collectives/hub/hub.h"

namespace driftless::hub {

// `job` must outlive the hub, return its errors (MPI_ERRORS_RETURN), and have one hub at a time.
// A link ignores messages of an earlier user of `job`; the hub treats them as those of a new link.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_mpi_hub(MPI_Comm job);
// `leader`: the rank of the hub in `job`.
[[nodiscard]] Result<Connector> make_mpi_connector(MPI_Comm job, int leader);

}  // namespace driftless::hub
