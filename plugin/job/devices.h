// SPDX-License-Identifier: Apache-2.0
// Opens the GPU as the configuration of a job asks. Implemented in devices_cuda.cpp if CUDA is
// linked, otherwise by a library loaded on demand (on_demand/device_access.cpp), which a build
// without CUDA does not have.
#pragma once

#include "plugin/device/device_factories.h"
#include "plugin/job/config.h"

namespace driftless {

// The publisher's side of the GPU, if the configuration asks for one, else null; without a snapshot
// if the weights are in GPU memory. Used as PublisherOptions::device.
[[nodiscard]] Result<std::shared_ptr<PublisherDevice>> open_device(
    const Config& config, MemoryKind weights = MemoryKind::kHost);
// Whether the versions are compared on a GPU.
[[nodiscard]] inline bool on_gpu(const Config& config, MemoryKind weights) {
  return config.gpu.snapshot == SnapshotPlace::kNone ? weights == MemoryKind::kDevice
                                                     : config.gpu.snapshot != SnapshotPlace::kHost;
}

}  // namespace driftless
