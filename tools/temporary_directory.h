// SPDX-License-Identifier: Apache-2.0
// A directory for the time of a measurement or a demonstration.
#pragma once

#include <string>
#include <utility>

#include "core/status.h"

namespace driftless {

// Made under TMPDIR, removed with all in it by the destructor.
class TemporaryDirectory {
 public:
  [[nodiscard]] static Result<TemporaryDirectory> create();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept
      : path_(std::exchange(other.path_, std::string())) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty once moved from
};

}  // namespace driftless
