// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/target_needs.h"
#include "core/host_name.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace driftless {
namespace {

// The smallest k in [1, size) for which `holds` is true, or `size`. `holds` must be monotonic.
template <typename Holds>
std::uint64_t least(std::uint64_t size, const Holds& holds) {
  std::uint64_t low = 1, high = size;
  while (low < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The slice that is needed along one dimension, by binary search over the tensor's ends.
TensorNeed need_along(const TensorSpec& spec, std::uint32_t tensor, std::uint32_t dim,
                      const TargetNeeds& needs) {
  const std::uint64_t size = spec.shape[dim];
  const auto needed = [&](std::uint64_t begin, std::uint64_t count) {
    TensorBox box{std::vector<std::uint64_t>(spec.shape.size()), spec.shape};
    box.offsets[dim] = begin;
    box.sizes[dim] = count;
    const Result<TensorBlock> block = TensorBlock::make(tensor, spec, std::move(box));
    return !block.ok() || needs.has(tensor, &*block);  // if it cannot be cut, all is needed
  };
  const std::uint64_t begin = least(size, [&](std::uint64_t k) { return needed(0, k); }) - 1;
  const std::uint64_t after = least(size, [&](std::uint64_t k) { return needed(size - k, k); }) - 1;
  if (begin + after >= size) return {};
  return {TensorNeed::Kind::kSlice, dim, begin, size - begin - after};
}

}  // namespace

std::vector<TensorNeed> tensor_needs(const WeightLayout& layout, const TargetNeeds* needs) {
  std::vector<TensorNeed> all;
  if (needs == nullptr) return all;
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    const TensorSpec& spec = layout[tensor];
    TensorNeed& best = all.emplace_back();
    if (!needs->has(tensor, nullptr)) best.kind = TensorNeed::Kind::kNothing;
    if (best.kind == TensorNeed::Kind::kNothing || spec.units() == 0) continue;
    double smallest = 1;
    for (std::uint32_t dim = 0; dim < spec.shape.size(); ++dim) {
      if (spec.shape[dim] < 2) continue;
      const TensorNeed need = need_along(spec, tensor, dim, *needs);
      const double share = static_cast<double>(need.size) / static_cast<double>(spec.shape[dim]);
      if (need.kind != TensorNeed::Kind::kSlice || share >= smallest) continue;
      smallest = share;
      best = need;
    }
  }
  return all;
}

bool holds_old_values(const WeightLayout& layout, const WeightTarget& target,
                      std::span<const TensorNeed> needs) {
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    const TensorSpec& spec = layout[tensor];
    if (!compact_fields(spec.dtype)) continue;  // it is not coded
    const TensorNeed need = needs.empty() ? TensorNeed() : needs[tensor];
    if (need.kind == TensorNeed::Kind::kNothing) continue;
    std::uint64_t units = spec.units();
    if (need.kind == TensorNeed::Kind::kSlice) units = units / spec.shape[need.dim] * need.size;
    if (target.readable_units(tensor) != units) return false;
  }
  return true;
}

void announce_checkpoint(const WeightTarget& target, ReceiverNeeds& needs) {
  const std::string directory = target.checkpoint_dir();
  if (directory.empty()) return;
  needs.checkpoint = reported_directory(directory);
  needs.host = host_name();
}

}  // namespace driftless
