// SPDX-License-Identifier: Apache-2.0
// Heads of frames that a road delivered into the GPU's memory, for code that reads them on the
// host.
#pragma once

#include <map>

#include "plugin/targets/weight_memory.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// The heads of the frames that stay in the weights' memory, by the frame's address.
using FrameHeads = std::map<const std::byte*, std::vector<std::byte>>;

// For parts in the GPU's memory: reads the heads of frames that can be used there (`in_place`), and
// copies all other parts to the host.
[[nodiscard]] Result<FrameHeads> fetch_heads(WeightMemory& memory, bool in_place,
                                             std::vector<FetchedVersion>& chain);

}  // namespace driftless
