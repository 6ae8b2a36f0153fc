// SPDX-License-Identifier: Apache-2.0
// The command line: parsed in one place, so that one file pays for the parser.
#pragma once

#include <functional>
#include <variant>

namespace driftless::cli {

// What the command line asks for (to be called once), or the exit code where it was only --help,
// --version or a mistake, which has been printed.
using Parsed = std::variant<std::function<int()>, int>;
[[nodiscard]] Parsed parse_arguments(int argc, char** argv);

}  // namespace driftless::cli
