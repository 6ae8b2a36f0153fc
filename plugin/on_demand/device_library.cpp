// The library of what needs CUDA and no road, loaded on demand (device_access.h).
#include <cuda_runtime_api.h>

#include "plugin/device/device_memory.h"
#include "plugin/on_demand/device_access.h"
#include "plugin/on_demand/loaded_library.h"

namespace driftless {
namespace {

Status wait_for_streams(std::span<void* const> streams) {
  for (void* const stream : streams) {
    const cudaError_t code = cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    if (code == cudaSuccess) continue;
    return error(StatusCode::kIo, "waiting for a stream of the tensors: ", cudaGetErrorString(code),
                 "; pass streams of the tensors' GPU that are still there");
  }
  return {};
}

int current_device() {
  int device = -1;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}

void choose_device(int device) { static_cast<void>(cudaSetDevice(device)); }

}  // namespace
}  // namespace driftless

extern "C" __attribute__((visibility("default"))) const driftless::DeviceTable*
driftless_device_table() {
  static const driftless::DeviceTable table{
      driftless::build_text(),      &driftless::check_device,   &driftless::make_device_target,
      &driftless::wait_for_streams, &driftless::current_device, &driftless::choose_device};
  return &table;
}
