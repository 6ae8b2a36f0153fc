// SPDX-License-Identifier: Apache-2.0
// Derives a tensor's layer and kind from its name alone:
//
//   model.layers.12.mlp.experts.3.up_proj.weight
//     layer "model.layers.12", kind "mlp.experts.up_proj"
//   lm_head.weight
//     no layer, kind "lm_head"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace driftless {

struct TensorPlace {
  std::string layer;  // the name up to its first number; kNoLayer without a number
  std::string kind;   // the rest of the name, without numbers and a last "weight"
};
inline constexpr std::string_view kNoLayer = "(no layer)";
[[nodiscard]] TensorPlace place_of_tensor(std::string_view name);
// Orders "layers.9" before "layers.10".
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b);

// Counts the changed weights of a group of tensors.
struct DensityGroup {
  std::string name;
  std::uint64_t tensors = 0, changed_tensors = 0;
  std::uint64_t changed_units = 0, total_units = 0;
};
// The group with this name; a new one is added at the end.
[[nodiscard]] DensityGroup& group_named(std::vector<DensityGroup>& groups, std::string_view name);

}  // namespace driftless
