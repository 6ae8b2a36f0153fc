// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/mpi_status.h"

#include <mpi.h>

#include <array>

namespace driftless::mpi_rma {

Status mpi_status(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  int error_class = MPI_ERR_UNKNOWN;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  if (MPI_Error_class(code, &error_class) != MPI_SUCCESS) error_class = MPI_ERR_UNKNOWN;
  const bool no_room = error_class == MPI_ERR_NO_MEM || error_class == MPI_ERR_NO_SPACE;
  const std::string_view reason(text.data(), static_cast<std::size_t>(length));
  return error(no_room ? StatusCode::kNoSpace : StatusCode::kIo, what, ": MPI error ", code, ": ",
               reason);
}

bool mpi_runs() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

}  // namespace driftless::mpi_rma
