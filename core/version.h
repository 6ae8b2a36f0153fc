// SPDX-License-Identifier: Apache-2.0
// Run, version and base: the identity of a set of weights.
#pragma once

#include <cstdint>
#include <string>

#include "core/hash128.h"

namespace driftless {

// A run has a random id; its versions are numbered from 0, the base checkpoint both sides start
// from.
struct VersionId {
  Hash128 run;  // zero: unknown (written by others)
  std::uint64_t version = 0;

  friend bool operator==(const VersionId&, const VersionId&) = default;
};

inline constexpr std::uint64_t kMaxVersion = (std::uint64_t{1} << 62) - 1;
// The version that an engine's rank reports if it holds parts of two versions, or if the proof of
// its weights failed.
inline constexpr std::int64_t kTornVersion = -1;

// The number as it stands in file names and in other tools' state: "000007".
[[nodiscard]] std::string version_string(std::uint64_t version);
// The opposite; kCorrupt unless `text` is at least six digits and at most kMaxVersion.
[[nodiscard]] Result<std::uint64_t> parse_version_string(std::string_view text);

}  // namespace driftless
