// SPDX-License-Identifier: Apache-2.0
// A directory that exists for the time of a measurement or a demonstration.
#pragma once

#include <string>
#include <utility>

#include "core/status.h"

namespace driftless {

// Created under TMPDIR; the destructor removes it with its contents.
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
  std::string path_;  // empty after a move
};

}  // namespace driftless
