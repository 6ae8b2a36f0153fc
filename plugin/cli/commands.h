// The subcommands of `driftless`. Each adds itself to the parser; its callback sets the exit code.
#pragma once

#include <functional>

#include "plugin/cli/console.h"

namespace CLI {
class App;
}

namespace driftless::cli {

// What a chosen subcommand does; returns the exit code.
using Action = std::function<int()>;

void add_synth(CLI::App& app, const Common& common, Action& action);
void add_diff(CLI::App& app, const Common& common, Action& action);
void add_apply(CLI::App& app, const Common& common, Action& action);
void add_verify(CLI::App& app, const Common& common, Action& action);
void add_inspect(CLI::App& app, const Common& common, Action& action);
void add_bench(CLI::App& app, const Common& common, Action& action);
void add_demo(CLI::App& app, const Common& common, Action& action);

}  // namespace driftless::cli
