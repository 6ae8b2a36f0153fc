// SPDX-License-Identifier: Apache-2.0
#include "collectives/mpi_rma/mpi_status.h"

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

Result<DuplicatedComm> duplicate_comm(MPI_Comm theirs, std::string_view what) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  DRIFTLESS_RETURN_IF_ERROR(
      mpi_status(MPI_Comm_get_errhandler(theirs, &handler), "MPI_Comm_get_errhandler"));
  MPI_Comm_set_errhandler(theirs, MPI_ERRORS_RETURN);
  DuplicatedComm comm;
  const int made = MPI_Comm_dup(theirs, &comm.comm);
  MPI_Comm_set_errhandler(theirs, handler);
  MPI_Errhandler_free(&handler);
  DRIFTLESS_RETURN_IF_ERROR(mpi_status(made, concat("MPI_Comm_dup of ", what)));
  MPI_Comm_set_errhandler(comm.comm, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(comm.comm, &rank);
  MPI_Comm_size(comm.comm, &size);
  comm.rank = static_cast<unsigned>(rank);
  comm.size = static_cast<unsigned>(size);
  return comm;
}

}  // namespace driftless::mpi_rma
