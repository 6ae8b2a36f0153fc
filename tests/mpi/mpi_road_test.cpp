// SPDX-License-Identifier: Apache-2.0
// The mpi_rma road among processes: mpirun -n N mpi_road_test SCENARIO [--level single|funneled]
// [--versions N] [--part-bytes N] [--compute-ms N] [--deadline-ms N] [--publishers N] [--lossy]
// [--expect-deadline] [--log-dir DIR]. Without a scenario: their names.
#include <mpi.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "mpi/scenario.h"

namespace {

using driftless::testing::Scenario;
using driftless::testing::ScenarioOptions;

struct Arguments {
  std::string scenario;
  int level = MPI_THREAD_MULTIPLE;
  ScenarioOptions options;
};

bool parse(int argc, char** argv, Arguments& out) {
  const std::map<std::string, int> levels{{"single", MPI_THREAD_SINGLE},
                                          {"funneled", MPI_THREAD_FUNNELED},
                                          {"multiple", MPI_THREAD_MULTIPLE}};
  const std::map<std::string, std::uint64_t*> numbers{{"--versions", &out.options.versions},
                                                      {"--part-bytes", &out.options.part_bytes},
                                                      {"--compute-ms", &out.options.compute_ms},
                                                      {"--deadline-ms", &out.options.deadline_ms}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--expect-deadline") {
      out.options.expect_deadline = true;
    } else if (word == "--lossy") {
      out.options.lossy = true;
    } else if (word.rfind("--", 0) != 0) {
      out.scenario = word;
    } else if (i + 1 == argc) {
      return false;
    } else if (word == "--level") {
      out.level = levels.at(argv[++i]);
    } else if (word == "--log-dir") {
      out.options.log_dir = argv[++i];
    } else if (word == "--publishers") {
      out.options.publishers = static_cast<unsigned>(std::atoi(argv[++i]));
    } else if (numbers.contains(word)) {
      *numbers.at(word) = std::strtoull(argv[++i], nullptr, 10);
    } else {
      return false;
    }
  }
  return driftless::testing::all_scenarios().contains(out.scenario);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    for (const auto& [name, run] : driftless::testing::all_scenarios()) std::puts(name.c_str());
    return 2;
  }
  int granted = 0;
  if (arguments.level == MPI_THREAD_SINGLE) {
    MPI_Init(&argc, &argv);
  } else {
    MPI_Init_thread(&argc, &argv, arguments.level, &granted);
  }
  Scenario scenario(arguments.scenario, arguments.options);
  driftless::testing::all_scenarios().at(arguments.scenario)(scenario);
  scenario.print(driftless::concat("ended with ", scenario.failures(), " failures"));
  // With a host or process that is gone MPI_Finalize would not return.
  if (arguments.options.expect_deadline || arguments.scenario == "killed")
    ::_exit(scenario.failures() == 0 ? 0 : 1);
  MPI_Finalize();
  return scenario.failures() == 0 ? 0 : 1;
}
