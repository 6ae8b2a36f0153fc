// SPDX-License-Identifier: Apache-2.0
// What a worker holds of each tensor, as it stands beside its replies: plugin/engines/
// engine_shares.h and engine_places.h say what the members mean.
#pragma once

#include "formats/strict_json.h"
#include "plugin/receive/receiver.h"

namespace driftless {

// `receiver`: whose run has the digests of whole tensors; null: they are left out.
[[nodiscard]] Json shares_json(const WeightLayout& layout, const Shares& shares,
                               const Receiver* receiver);
// What lies there now: the shares of all tensors (`tensor` is empty), the digests of one tensor's
// blocks (`units` is 0), or elements of it.
[[nodiscard]] Result<Json> read_json(const MappedTarget& target, const std::string& tensor,
                                     std::uint64_t first, std::uint64_t units);

}  // namespace driftless
