// SPDX-License-Identifier: Apache-2.0
// Quantized weights of publishers with a GPU, against what the reference makes in host memory.
#include "gpu/device.h"
#include "plugin/device/device_factories.h"
#include "support/device_quantized_cases.h"

namespace driftless::testing {

const GpuUnderTest& gpu_under_test() {
  static const GpuUnderTest kGpu{
      {SnapshotPlace::kPinned, SnapshotPlace::kDevice},
      make_publisher_device,
      [](std::span<const std::byte> bytes) {
        auto held = std::make_shared<DeviceBytes>(bytes);
        return std::shared_ptr<std::byte>(held, held->data());
      },
      [](std::byte* to, std::span<const std::byte> bytes) {
        must(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
        must(cudaDeviceSynchronize());
      }};
  return kGpu;
}

}  // namespace driftless::testing
