// SPDX-License-Identifier: Apache-2.0
// Which layer a tensor belongs to, and which kind of tensor it is, by its name alone:
//
//   model.layers.12.mlp.experts.3.up_proj.weight   layer "model.layers.12", kind
//   "mlp.experts.up_proj" lm_head.weight                                 no layer, kind "lm_head"
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace driftless {

struct TensorPlace {
  std::string layer;  // up to the first number in the name; kNoLayer if there is none
  std::string kind;   // what follows, without numbers and without a last "weight"
};
inline constexpr std::string_view kNoLayer = "(no layer)";
[[nodiscard]] TensorPlace place_of_tensor(std::string_view name);
// "layers.9" before "layers.10".
[[nodiscard]] bool natural_less(std::string_view a, std::string_view b);

// Changed weights of a group of tensors.
struct DensityGroup {
  std::string name;
  std::uint64_t tensors = 0, changed_tensors = 0;
  std::uint64_t changed_units = 0, total_units = 0;
};
// The group of this name, which is added at the end if it is new.
[[nodiscard]] DensityGroup& group_named(std::vector<DensityGroup>& groups, std::string_view name);

}  // namespace driftless
