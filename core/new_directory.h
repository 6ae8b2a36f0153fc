// SPDX-License-Identifier: Apache-2.0
// A directory that is made for the caller, but not where it was mistyped, or where the file system
// that should hold it is not mounted.
#pragma once

#include "core/file_system.h"

namespace driftless {

// Makes `path` unless it is there; its parent must be. True: it was made. kNotFound, naming both,
// if the parent is not there.
[[nodiscard]] Result<bool> make_last_directory(FileSystem& fs, const std::string& path);

}  // namespace driftless
