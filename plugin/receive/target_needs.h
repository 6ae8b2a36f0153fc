// SPDX-License-Identifier: Apache-2.0
// What a receiver announces about its target: which encodings the publisher may send, and how
// tensors are best cut for it.
#pragma once

#include "formats/receiver_needs.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// For each tensor of which only a part is needed: the slice that contains the part, along the
// dimension where that slice is smallest. `needs`: the target's; null: everything is needed.
// O(tensors * log of their dimensions).
[[nodiscard]] std::vector<TensorNeed> tensor_needs(const WeightLayout& layout,
                                                   const TargetNeeds* needs);

// Whether the target holds the old values of everything it needs, as `compact` requires: of a
// tensor that is needed in part, exactly the slice. `needs` is the result of tensor_needs().
[[nodiscard]] bool holds_old_values(const WeightLayout& layout, const WeightTarget& target,
                                    std::span<const TensorNeed> needs);

// Adds the checkpoint that the target patches, and its host, if it patches one.
void announce_checkpoint(const WeightTarget& target, ReceiverNeeds& needs);

}  // namespace driftless
