// SPDX-License-Identifier: Apache-2.0
// What may be removed from a shared directory: a question of numbers alone.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/road.h"
#include "collectives/shared_fs/receiver_file.h"

namespace driftless::shared_fs {

// Of `there`, what SendRoad::prune(version) may remove, ascending: oldest first, so that what an
// interrupted pruning leaves is still a chain.
[[nodiscard]] std::vector<PublicationId> prunable(
    const std::vector<PublicationId>& there, std::uint64_t version,
    const std::vector<ReceiverWatch::Receiver>& receivers);

}  // namespace driftless::shared_fs
