// SPDX-License-Identifier: Apache-2.0
// The `driftless` command.
#include <cstdio>
#include <exception>

#include "tools/cli/arguments.h"
#include "tools/cli/console.h"

int main(int argc, char** argv) {
  using namespace driftless::cli;
  try {
    const Parsed parsed = parse_arguments(argc, argv);
    const auto* action = std::get_if<std::function<int()>>(&parsed);
    return action != nullptr ? (*action)() : std::get<int>(parsed);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "driftless: internal: %s\n", exception.what());
    return kExitInternal;
  }
}
