// SPDX-License-Identifier: Apache-2.0
// Writes the tensors that a commit changed into a directory of their own, for engines that can load
// any subset of a checkpoint (SGLang).
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"

namespace driftless {

// Writes these tensors of the checkpoint, whole, into `directory`, which appears only when
// complete. Returns false and writes nothing if they are the whole checkpoint.
[[nodiscard]] Result<bool> write_changed_tensors(FileSystem& fs, const std::string& checkpoint,
                                                 const std::set<std::uint32_t>& changed,
                                                 const std::string& directory);

// Ok if the model at `path` has all tensors of the checkpoint in the same shapes.
[[nodiscard]] Status check_same_shapes(FileSystem& fs, const std::string& path,
                                       const WeightLayout& layout);

}  // namespace driftless
