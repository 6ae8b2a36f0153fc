// SPDX-License-Identifier: Apache-2.0
// The words in the proof of a receiver's report (collectives/road.h carries it unread).
#pragma once

#include <string_view>

namespace driftless {

// The proof in the report of a receiver that cannot follow the versions and finds no anchor: the
// publisher makes one with its next version.
inline constexpr std::string_view kAnchorWanted = "anchor wanted";

// Behind the digest, if there are tensors that the receiver cannot read back: their number.
inline constexpr std::string_view kUnproven = " unproven=";

// Behind the digest: the run that the version is of, 32 digits.
inline constexpr std::string_view kProofRun = " run=";

}  // namespace driftless
