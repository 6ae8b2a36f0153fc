// SPDX-License-Identifier: Apache-2.0
// What a receiver announces of its target: what the publisher may send it, and how tensors are best
// cut for it.
#pragma once

#include "formats/receiver_needs.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// `needs`: of the target; null: everything. Of a tensor that is needed in part the slice, along the
// dimension that makes it smallest. O(tensors * log of their dimensions).
[[nodiscard]] std::vector<TensorNeed> tensor_needs(const WeightLayout& layout,
                                                   const TargetNeeds* needs);

// Whether the target holds the old values of all that it needs, as `compact` wants them: of a
// tensor that is needed in part, exactly the slice. `needs` as tensor_needs() says.
[[nodiscard]] bool holds_old_values(const WeightLayout& layout, const WeightTarget& target,
                                    std::span<const TensorNeed> needs);

// Which checkpoint the target patches, and on which host, if it does.
void announce_checkpoint(const WeightTarget& target, ReceiverNeeds& needs);

}  // namespace driftless
