// SPDX-License-Identifier: Apache-2.0
// The entries of the directory besides the versions: the end of the run, for rollouts that were
// started separately, and signs of life.
#pragma once

#include "collectives/road_kind.h"
#include "collectives/shared_fs/shared_fs_road.h"

namespace driftless::shared_fs {

[[nodiscard]] Status withdraw_end(const RoadOptions& options);
[[nodiscard]] Status publish_end(const RoadOptions& options, std::string_view text);
[[nodiscard]] Result<std::optional<std::string>> fetch_end(const RoadOptions& options);
[[nodiscard]] std::vector<Finding> examine(const RoadOptions& options, std::uint64_t space_bytes,
                                           const Deadline& deadline);
[[nodiscard]] Result<RoadSigns> signs(const RoadOptions& options, const Deadline& deadline);

}  // namespace driftless::shared_fs
