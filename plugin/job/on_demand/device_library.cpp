// SPDX-License-Identifier: Apache-2.0
// The library, loaded on demand, of everything that needs CUDA and is not a road (device_access.h).
#include <cuda_runtime_api.h>

#include "plugin/device/device_factories.h"
#include "plugin/device/device_memory.h"
#include "plugin/job/on_demand/device_access.h"
#include "plugin/job/on_demand/loaded_library.h"

namespace driftless {
namespace {

Status wait_for_streams(int device, std::span<void* const> streams) {
  DRIFTLESS_ASSIGN_OR_RETURN(const auto on, OnDevice::enter(device));
  for (void* const stream : streams) {
    const cudaError_t code = cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    if (code == cudaSuccess) continue;
    return error(StatusCode::kIo, "waiting for a stream of the tensors: ", cudaGetErrorString(code),
                 "; pass streams of the tensors' GPU that are still there");
  }
  return {};
}

}  // namespace
}  // namespace driftless

extern "C" __attribute__((visibility("default"))) const driftless::DeviceTable*
driftless_device_table() {
  using namespace driftless;  // NOLINT(google-build-using-namespace)
  static const DeviceTable table{
      build_text(),         &check_device,      &make_device_memory,
      &check_device_memory, &wait_for_streams,  &allocate_on_device,
      &gather_on_device,    &scatter_on_device, &masked_overwrite_on_device,
      &diff_on_device,      &digest_on_device,  &make_publisher_device,
      &make_masked_device,  &device_xxh3_128};
  return &table;
}
