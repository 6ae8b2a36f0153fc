// SPDX-License-Identifier: Apache-2.0
// The `driftless` command: parses the command line and runs one subcommand.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "core/line_log.h"
#include "tools/cli/arguments.h"
#include "tools/cli/help_pages.h"

namespace driftless::cli {
namespace {

void add_common(CLI::App& command, Common& common) {
  command.add_flag("--json", common.json, "Print JSON instead of text");
  command.add_option("--threads", common.threads, "Threads to use (default: one per core)")
      ->check(CLI::Range(1, 1024));
}

// The error in the first words of the command line, or empty; "config WORD" has two words.
std::string unknown_command(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const auto known = at->get_subcommands([](const CLI::App*) { return true; });
    if (known.empty()) return {};
    const auto next = std::ranges::find_if(
        known, [&](const CLI::App* each) { return each->get_name() == argv[i]; });
    if (next == known.end()) {
      std::string names;
      for (const CLI::App* each : known) names += concat(" ", each->get_name());
      return concat("there is no command '", argv[i], "'; the commands are:", names);
    }
    at = *next;
  }
  return {};
}

// Returns the exit code. Errors have been printed.
int run(int argc, char** argv) {
  CLI::App app{"Driftless ships exactly the changed weights, losslessly."};
  app.name("driftless");
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  Arguments all;
  add_checkpoint_commands(app, all);
  add_job_commands(app, all);
  add_operator_commands(app, all);
  app.footer(exit_codes_text());  // subcommands would inherit the footer
  for (CLI::App* command : app.get_subcommands({})) {
    const auto below = command->get_subcommands({});
    if (below.empty()) add_common(*command, all.common);
    for (CLI::App* inner : below) add_common(*inner, all.common);
  }
  if (const std::string unknown = unknown_command(app, argc, argv); !unknown.empty()) {
    std::cerr << "driftless: usage: " << unknown << "; see driftless --help\n";
    return kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& parse_error) {
    if (parse_error.get_exit_code() == 0) return app.exit(parse_error);  // --help, --version
    std::cerr << "driftless: usage: " << parse_error.what() << "; see driftless --help\n";
    return kExitUsage;
  }
  const Result<int> code = all.run();
  process_log().flush();
  if (!code.ok()) return report(all.common, code.status());
  if (std::cout.flush()) return *code;
  report_line(error(StatusCode::kIo, "standard output: not all of it could be written"));
  return kExitIo;
}

}  // namespace
}  // namespace driftless::cli

int main(int argc, char** argv) {
  try {
    return driftless::cli::run(argc, argv);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "driftless: internal: %s\n", exception.what());
    return driftless::cli::kExitInternal;
  }
}
