// SPDX-License-Identifier: Apache-2.0
// Describes a file or directory: its kind, and its headers and tables.
#pragma once

#include "core/file_system.h"

namespace driftless {

struct Inspection {
  std::string kind;  // "checkpoint", "version", "versions", "safetensors", "flush", "frame", ...
  std::vector<std::pair<std::string, std::string>> facts{};  // name, value
  std::vector<std::string> columns{};                        // of `rows`; empty if there are none
  std::vector<std::vector<std::string>> rows{};
};

// Reads headers and tables, not weights. Everything it returns was checked.
[[nodiscard]] Result<Inspection> inspect_path(FileSystem& fs, const std::string& path);

}  // namespace driftless
