// SPDX-License-Identifier: Apache-2.0
// Pages generated from the command's options: the man page, the shell completion, and the paragraph
// on exit codes.
#pragma once

#include <string>

#include "core/status.h"

namespace CLI {
class App;
}

namespace driftless::cli {

// For `driftless --help`.
[[nodiscard]] std::string exit_codes_text();
// In troff, for man(1). `app` has all subcommands.
[[nodiscard]] std::string man_page(const CLI::App& app, std::string_view release);
// `shell`: bash, zsh or fish.
[[nodiscard]] Result<std::string> completion(const CLI::App& app, std::string_view shell);

}  // namespace driftless::cli
