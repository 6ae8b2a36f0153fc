// SPDX-License-Identifier: Apache-2.0
// What targets do with fetched versions before they look at payloads: whether they follow from the
// target's state, and their payloads opened.
#pragma once

#include "plugin/targets/version_source.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

// Ok if `chain` is deltas that adjoin each other and the state, or one full version. kWrongRun,
// kWrongLayout, or kWrongBase naming the version and what it needs.
[[nodiscard]] Status check_chain(const TargetState& state, const WeightLayout& layout,
                                 std::span<const FetchedVersion> chain);

// The payloads, in order (VersionSource::open). The layout outlives them.
[[nodiscard]] Result<std::vector<VersionSource>> open_chain(
    FileSystem& spool_fs, std::vector<FetchedVersion> chain, const WeightLayout& layout,
    const std::string& spool_directory, unsigned threads, const FrontReader& front = {});

}  // namespace driftless
