// SPDX-License-Identifier: Apache-2.0
// Names within version.h5, for the sink and the reader.
#pragma once

#include <string>

#include "core/status.h"

namespace driftless {

inline constexpr unsigned kHdf5FormatVersion = 1;

// "/rank0003"
[[nodiscard]] inline std::string hdf5_group_name(unsigned rank) {
  const std::string digits = concat(rank);
  return concat("/rank", std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0'), digits);
}

}  // namespace driftless
