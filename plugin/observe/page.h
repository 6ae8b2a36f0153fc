// SPDX-License-Identifier: Apache-2.0
// The live page: one HTML file (page.html), embedded by CMake.
#pragma once

#include <string_view>

namespace driftless {

[[nodiscard]] std::string_view status_page();

}  // namespace driftless
