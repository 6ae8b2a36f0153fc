// SPDX-License-Identifier: Apache-2.0
// Makes a directory for the caller, but not if its path was mistyped or if the file system that
// should hold it is not mounted.
#pragma once

#include "core/file_system.h"

namespace driftless {

// Makes `path` unless it exists. True: it was made. kNotFound, naming both, if the parent does not
// exist.
[[nodiscard]] Result<bool> make_last_directory(FileSystem& fs, const std::string& path);

}  // namespace driftless
