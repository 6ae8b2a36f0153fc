// SPDX-License-Identifier: Apache-2.0
#include "collectives/nccl/nccl_status.h"

namespace driftless::nccl {

Status cuda_status(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return {};
  cudaGetLastError();  // not to be found by whoever asks next
  const StatusCode meant =
      code == cudaErrorMemoryAllocation ? StatusCode::kNoSpace : StatusCode::kIo;
  return error(meant, "nccl: ", what, ": CUDA says ", cudaGetErrorString(code));
}

Status nccl_status(ncclResult_t code, std::string_view what, ncclComm_t communicator) {
  if (code == ncclSuccess || code == ncclInProgress) return {};
  const char* last = ncclGetLastError(communicator);
  std::string more = last == nullptr ? std::string() : std::string(last);
  for (char& c : more) {
    if (c == '\n') c = ' ';
  }
  return error(StatusCode::kIo, "nccl: ", what, ": NCCL says ", ncclGetErrorString(code),
               more.empty() ? "" : "; ", more);
}

}  // namespace driftless::nccl
