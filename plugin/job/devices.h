// SPDX-License-Identifier: Apache-2.0
// Opens the GPU as the configuration of a job asks. Implemented in devices_cuda.cpp if CUDA is
// linked, otherwise by a library loaded on demand (on_demand/device_access.cpp), which a build
// without CUDA does not have.
#pragma once

#include "plugin/device/device_factories.h"
#include "plugin/job/config.h"

namespace driftless {

// Opens the GPU for a publisher (PublisherOptions::device). Null if versions are not compared on a
// GPU (on_gpu()).
[[nodiscard]] Result<std::shared_ptr<PublisherDevice>> open_device(
    const Config& config, MemoryKind weights = MemoryKind::kHost);
// Whether versions are compared on a GPU. With snapshot: none, that depends on where `weights` are.
[[nodiscard]] inline bool on_gpu(const Config& config, MemoryKind weights) {
  return config.gpu.snapshot == SnapshotPlace::kNone ? weights == MemoryKind::kDevice
                                                     : config.gpu.snapshot != SnapshotPlace::kHost;
}

}  // namespace driftless
