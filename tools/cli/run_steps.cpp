// SPDX-License-Identifier: Apache-2.0
#include "tools/cli/run_steps.h"

#include "core/version.h"

namespace driftless::cli {
namespace {

std::string step_path(const std::string& directory, std::uint64_t step) {
  return join_path(directory, concat("step_", version_string(step)));
}

// The last step of those that follow each other; kNotFound where not even the base is there.
Result<std::uint64_t> count_steps(FileSystem& fs, const std::string& directory,
                                  std::optional<std::uint64_t> enough) {
  DRIFTLESS_ASSIGN_OR_RETURN([[maybe_unused]] const FileInfo base,
                             fs.info(step_path(directory, 0)));
  std::uint64_t last = 0;
  while ((!enough || last < *enough) && exists(fs, step_path(directory, last + 1))) ++last;
  return last;
}

}  // namespace

Result<RunSteps> RunSteps::replay(FileSystem& fs, const std::string& directory,
                                  std::optional<std::uint64_t> steps) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t last, count_steps(fs, directory, steps));
  if (steps && last < *steps) {
    return error(StatusCode::kNotFound, step_path(directory, last + 1),
                 ": is not there, and --steps asks for ", *steps);
  }
  return RunSteps(directory, last, last);
}

Result<RunSteps> RunSteps::to_and_fro(FileSystem& fs, const std::string& directory,
                                      std::uint64_t steps) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t last, count_steps(fs, directory, steps));
  return RunSteps(directory, last == 0 ? 0 : steps, last);
}

std::string RunSteps::path(std::uint64_t version) const {
  if (distinct_ == 0) return step_path(directory_, 0);
  const std::uint64_t place = version % (2 * distinct_);
  return step_path(directory_, place <= distinct_ ? place : 2 * distinct_ - place);
}

}  // namespace driftless::cli
