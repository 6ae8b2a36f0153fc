// SPDX-License-Identifier: Apache-2.0
// The shares and contents that a worker adds to its replies. plugin/engines/engine_shares.h and
// engine_places.h define the members.
#pragma once

#include "formats/strict_json.h"
#include "plugin/receive/receiver.h"

namespace driftless {

// `receiver`: has the run's digests of whole tensors; null: they are left out.
[[nodiscard]] Json shares_json(const WeightLayout& layout, const Shares& shares,
                               const Receiver* receiver);
// The present contents: the shares of all tensors (`tensor` is empty), the digests of one tensor's
// blocks (`units` is 0), or elements of it.
[[nodiscard]] Result<Json> read_json(const MappedTarget& target, const std::string& tensor,
                                     std::uint64_t first, std::uint64_t units);

}  // namespace driftless
