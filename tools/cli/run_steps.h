// SPDX-License-Identifier: Apache-2.0
// The weights that `driftless trainer` plays: one checkpoint directory per version.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/file_system.h"
#include "core/status.h"

namespace driftless::cli {

class RunSteps {
 public:
  // DIR/step_000000/ (the base), step_000001/, ... without a gap; the first `steps` of them, or
  // all. kNotFound where there are not so many.
  [[nodiscard]] static Result<RunSteps> replay(FileSystem& fs, const std::string& directory,
                                               std::optional<std::uint64_t> steps);
  // The same directories, played to and fro (0 1 2 3 2 1 0 1 ...) up to `steps` versions: so many
  // versions as one likes from a few checkpoints.
  [[nodiscard]] static Result<RunSteps> to_and_fro(FileSystem& fs, const std::string& directory,
                                                   std::uint64_t steps);

  [[nodiscard]] std::uint64_t last() const { return last_; }
  // The checkpoint of a version, 0 to last().
  [[nodiscard]] std::string path(std::uint64_t version) const;

 private:
  RunSteps(std::string directory, std::uint64_t last, std::uint64_t distinct)
      : directory_(std::move(directory)), last_(last), distinct_(distinct) {}
  std::string directory_;
  std::uint64_t last_;
  std::uint64_t distinct_;  // directories past the base
};

}  // namespace driftless::cli
