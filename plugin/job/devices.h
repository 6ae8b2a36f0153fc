// SPDX-License-Identifier: Apache-2.0
// The GPU's part of a job, as its configuration asks for it. Built with or without CUDA: without,
// the calls say so.
#pragma once

#include "plugin/job/config.h"
#include "plugin/targets/masked_device.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// The publisher's side of the GPU, if the configuration asks for one (else null). For
// PublisherOptions::device.
[[nodiscard]] Result<std::shared_ptr<PublisherDevice>> open_device(const Config& config);
// A rollout's weights on its GPU (make_owned_target()).
using DeviceTarget = MappedTarget;
[[nodiscard]] Result<std::unique_ptr<DeviceTarget>> open_device_target(
    const Config& config, const std::optional<std::string>& base);

// Where a module on a GPU keeps its parameters (make_device_memory()).
[[nodiscard]] Result<std::shared_ptr<WeightMemory>> open_device_memory(int device);
// What its loader's masked overwrites go through (make_masked_device()).
[[nodiscard]] Result<std::unique_ptr<MaskedDevice>> open_masked_device(int device);

}  // namespace driftless
