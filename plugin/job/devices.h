// SPDX-License-Identifier: Apache-2.0
// The GPU's part of a job, as its configuration asks for it. Where CUDA is linked
// (devices_cuda.cpp), or by the library that is loaded (on_demand/device_access.cpp), which a build
// without CUDA lacks.
#pragma once

#include "plugin/device/device_factories.h"
#include "plugin/job/config.h"

namespace driftless {

// The publisher's side of the GPU, if the configuration asks for one (else null): without a
// snapshot if the weights lie there. For PublisherOptions::device.
[[nodiscard]] Result<std::shared_ptr<PublisherDevice>> open_device(
    const Config& config, MemoryKind weights = MemoryKind::kHost);
// Whether a GPU compares.
[[nodiscard]] inline bool on_gpu(const Config& config, MemoryKind weights) {
  return config.gpu.snapshot == SnapshotPlace::kNone ? weights == MemoryKind::kDevice
                                                     : config.gpu.snapshot != SnapshotPlace::kHost;
}

}  // namespace driftless
