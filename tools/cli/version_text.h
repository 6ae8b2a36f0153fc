#pragma once

#include <string>

namespace driftless::cli {

// Version, and every optional backend: built, or why not.
[[nodiscard]] std::string version_text();

}  // namespace driftless::cli
