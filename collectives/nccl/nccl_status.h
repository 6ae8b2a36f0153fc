// SPDX-License-Identifier: Apache-2.0
// What CUDA and NCCL say, as a Status.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <string_view>

#include "core/status.h"
#include "core/thread_gpu.h"

namespace driftless::nccl {

[[nodiscard]] Status cuda_status(cudaError_t code, std::string_view what);
// kIo: the communicator is lost. ncclInProgress is ok.
[[nodiscard]] Status nccl_status(ncclResult_t code, std::string_view what,
                                 ncclComm_t communicator = nullptr);

// Makes `device` current on this thread, for as long as it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) { cudaSetDevice(device); }

 private:
  KeepThreadGpu keep_;
};

}  // namespace driftless::nccl
