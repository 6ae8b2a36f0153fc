// The `driftless` command.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "plugin/cli/commands.h"
#include "plugin/cli/version_text.h"

namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done (verify: identical), 1 verify found a difference, 2 wrong usage, 3 not "
    "found or\n"
    "not whole yet, 4 damaged or refused (wrong run, base, layout, content), 5 I/O failed or no "
    "space,\n"
    "6 locked by another process, 7 exists already, 8 not supported, 70 internal error.";

int run(int argc, char** argv) {
  using namespace driftless::cli;
  CLI::App app{"Driftless ships exactly the changed weights, losslessly."};
  app.name("driftless");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer(kExitCodes);
  Common common;
  Action action;
  for (const auto add :
       {add_synth, add_diff, add_apply, add_verify, add_inspect, add_demo}) {
    add(app, common, action);
  }
  for (CLI::App* command : app.get_subcommands({})) {
    command->add_flag("--json", common.json, "Print one JSON object instead of text");
    command->add_option("--threads", common.threads, "Threads to use (default: one per core)")
        ->check(CLI::Range(1, 1024));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& parse_error) {
    return app.exit(parse_error) == 0 ? kExitOk : kExitUsage;
  }
  return action();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& exception) {
    std::cerr << "driftless: internal: " << exception.what() << "\n";
    return driftless::cli::kExitInternal;
  }
}
