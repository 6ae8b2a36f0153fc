// SPDX-License-Identifier: Apache-2.0
// Masked overwrites on a GPU (plugin/targets/masked_device.h). Library driftless_device; includes
// no CUDA header.
#pragma once

#include <memory>

#include "core/status.h"
#include "plugin/targets/masked_device.h"

namespace driftless {

[[nodiscard]] Result<std::unique_ptr<MaskedDevice>> make_masked_device(int device);

}  // namespace driftless
