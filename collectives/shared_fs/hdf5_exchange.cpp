// SPDX-License-Identifier: Apache-2.0
#include "collectives/shared_fs/hdf5_exchange.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace driftless {
namespace {

static_assert(std::is_trivially_copyable_v<Hdf5Message>);

}  // namespace

Status hdf5_mpi_status(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  return error(StatusCode::kIo, what,
               ": MPI: ", std::string_view(text.data(), static_cast<std::size_t>(length)));
}

void Hdf5Message::set_failure(const Status& why) {
  kind = kFailed;
  code = static_cast<std::uint32_t>(why.code());
  const std::string_view message = why.message().substr(0, text.size() - 1);
  text.fill('\0');
  std::copy(message.begin(), message.end(), text.begin());
}

Status Hdf5Message::failure(unsigned rank) const {
  const bool known = code > 0 && code <= static_cast<std::uint32_t>(StatusCode::kInternal);
  return error(known ? static_cast<StatusCode>(code) : StatusCode::kInternal, "publisher rank ",
               rank, ": ", std::string_view(text.data(), ::strnlen(text.data(), text.size())));
}

Result<std::unique_ptr<Hdf5Exchange>> Hdf5Exchange::create(MPI_Comm ranks) {
  MPI_Comm comm = MPI_COMM_NULL;
  DRIFTLESS_RETURN_IF_ERROR(
      hdf5_mpi_status(MPI_Comm_dup(ranks, &comm), "the communicator of the publisher ranks"));
  std::unique_ptr<Hdf5Exchange> exchange(new Hdf5Exchange(comm));
  int rank = 0;
  int size = 1;
  DRIFTLESS_RETURN_IF_ERROR(
      hdf5_mpi_status(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
  DRIFTLESS_RETURN_IF_ERROR(hdf5_mpi_status(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank"));
  DRIFTLESS_RETURN_IF_ERROR(hdf5_mpi_status(MPI_Comm_size(comm, &size), "MPI_Comm_size"));
  exchange->rank_ = static_cast<unsigned>(rank);
  exchange->size_ = static_cast<unsigned>(size);
  exchange->buffers_ = std::make_unique<Buffers>();
  exchange->buffers_->heard.resize(exchange->size_);
  return exchange;
}

Hdf5Exchange::~Hdf5Exchange() {
  int finalized = 1;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  if (request_ != MPI_REQUEST_NULL) {
    [[maybe_unused]] const Buffers* left = buffers_.release();  // MPI may still write there
    return;
  }
  (void)MPI_Comm_free(&comm_);
}

Status Hdf5Exchange::post(const Hdf5Message& mine) {
  buffers_->mine = mine;
  constexpr int kBytes = sizeof(Hdf5Message);
  return hdf5_mpi_status(MPI_Iallgather(&buffers_->mine, kBytes, MPI_BYTE, buffers_->heard.data(),
                                        kBytes, MPI_BYTE, comm_, &request_),
                         "a meeting of the publisher ranks");
}

Result<bool> Hdf5Exchange::test() {
  int done = 0;
  DRIFTLESS_RETURN_IF_ERROR(hdf5_mpi_status(MPI_Test(&request_, &done, MPI_STATUS_IGNORE),
                                            "a meeting of the publisher ranks"));
  return done != 0;
}

}  // namespace driftless
