// SPDX-License-Identifier: Apache-2.0
// Proof that two sets of weights are the same, bit for bit, or the first place where they are not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "formats/checkpoint.h"
#include "formats/manifest.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

struct Difference {
  std::string tensor;
  std::uint64_t position = 0;  // unit
  std::string value;           // here: bits, and the number where the type has one
  std::string other_value;     // there
  std::uint64_t units = 0;     // differing units of all tensors
  std::uint64_t tensors = 0;   // differing tensors
};

// Absent: identical. kWrongLayout where the tensors are not the same ones.
[[nodiscard]] Result<std::optional<Difference>> compare_weights(const Checkpoint& checkpoint,
                                                                const Checkpoint& other,
                                                                unsigned threads,
                                                                const Progress& progress);

// One unit for people: "0x3f80 (1)".
[[nodiscard]] std::string describe_unit(DType dtype, const std::byte* unit);

}  // namespace driftless
