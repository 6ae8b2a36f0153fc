// SPDX-License-Identifier: Apache-2.0
// The GPU's part of a job, as its configuration asks for it. Built with or without CUDA: without,
// this call, make_device_memory() and make_masked_device() say so.
#pragma once

#include "plugin/device/device_factories.h"
#include "plugin/job/config.h"

namespace driftless {

// The publisher's side of the GPU, if the configuration asks for one (else null). For
// PublisherOptions::device.
[[nodiscard]] Result<std::shared_ptr<PublisherDevice>> open_device(const Config& config);

}  // namespace driftless
