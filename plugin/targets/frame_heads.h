// SPDX-License-Identifier: Apache-2.0
// Parts of versions that came into the GPU's memory, for what reads them on the host.
#pragma once

#include <map>

#include "plugin/targets/weight_memory.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// The heads of the frames that stay in the weights' memory, by their address.
using FrameHeads = std::map<const std::byte*, std::vector<std::byte>>;

// Parts that came into the GPU's memory: of frames that can be used there, their heads; others
// come to the host.
[[nodiscard]] Result<FrameHeads> fetch_heads(WeightMemory& memory, bool in_place,
                                             std::vector<FetchedVersion>& chain);

}  // namespace driftless
