// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <nlohmann/json.hpp>

#include "tools/cli/commands.h"
#include "tools/synth.h"

namespace driftless::cli {
Result<int> run_synth(const Common& common, SynthOptions options) {
  ProgressBar bar("synthesizing");
  options.threads = common.thread_count();
  options.progress = bar.callback();
  DRIFTLESS_ASSIGN_OR_RETURN(const SynthReport done, synthesize(posix_file_system(), options));
  if (common.json) {
    print_json({{"params", done.params},
                {"bytes_per_step", done.bytes_per_step},
                {"directories", done.directories},
                {"density", done.density}});
    return int{kExitOk};
  }
  std::cout << done.directories.front() << ": " << done.params << " parameters, "
            << human_bytes(done.bytes_per_step) << "\n";
  for (std::size_t step = 0; step < done.density.size(); ++step) {
    std::cout << done.directories[step + 1] << ": " << fixed(100 * done.density[step], 3)
              << " % of the weights changed\n";
  }
  return int{kExitOk};
}

}  // namespace driftless::cli
