// SPDX-License-Identifier: Apache-2.0
// Comparing weights where they are: the publisher's side of a GPU (plugin/publish/device_side.h).
#pragma once

#include <memory>

#include "plugin/publish/device_side.h"

namespace driftless {

// kUnsupported where this process has no such GPU. The device becomes current on the caller's
// thread, which is the publisher's.
[[nodiscard]] Result<std::shared_ptr<DeviceSide>> make_device_side(const DeviceOptions& options);

}  // namespace driftless
