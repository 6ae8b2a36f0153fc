// SPDX-License-Identifier: Apache-2.0
// The name of this host, for records, messages and ids.
#pragma once

#include <string>

namespace driftless {

// Empty if the system does not report it.
[[nodiscard]] std::string host_name();

}  // namespace driftless
