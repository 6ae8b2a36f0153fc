// What CUDA and NCCL say, as a Status.
#pragma once

#include <cuda_runtime.h>
#include <nccl.h>

#include <string_view>

#include "core/status.h"

namespace driftless::nccl {

[[nodiscard]] Status cuda_status(cudaError_t code, std::string_view what);
// kIo: the communicator is lost. ncclInProgress is ok.
[[nodiscard]] Status nccl_status(ncclResult_t code, std::string_view what,
                                 ncclComm_t communicator = nullptr);

// Makes `device` current on this thread, for as long as it lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = device;
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace driftless::nccl
