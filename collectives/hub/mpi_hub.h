// SPDX-License-Identifier: Apache-2.0
// The hub inside one mpirun job (library driftless_hub_mpi). Nothing listens: messages go over the
// job's communicator, with two tags of our own.
//
// Hub and links are used by threads of the road, so MPI_THREAD_MULTIPLE is needed: kUnsupported
// without it. Everything made here ends before MPI_Finalize.
#pragma once

#include <mpi.h>

#include "collectives/hub/hub.h"

namespace driftless::hub {

// `job` outlives what is made, returns its errors (MPI_ERRORS_RETURN), and has one hub at a time. A
// message that a world before has left in it is passed over.
[[nodiscard]] Result<std::unique_ptr<Hub>> make_mpi_hub(MPI_Comm job);
// `leader`: the rank of the hub in `job`.
[[nodiscard]] Result<Connector> make_mpi_connector(MPI_Comm job, int leader);

}  // namespace driftless::hub
