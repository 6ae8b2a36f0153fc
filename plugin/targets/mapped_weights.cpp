// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/mapped_weights.h"

#include <algorithm>

#include "plugin/targets/weight_sums.h"

namespace driftless {
namespace {

Status check_map(const WeightLayout& layout, const WeightMap& each) {
  if (each.tensor >= layout.size()) {
    return error(StatusCode::kInvalidArgument, "a map of tensor number ", each.tensor,
                 ", expected one below ", layout.size());
  }
  const TensorSpec& spec = layout[each.tensor];
  const unsigned unit = unit_bytes(spec.dtype);
  if (each.map.source_end > spec.units() || source_bytes(each.cast, each.unit_bytes) != unit ||
      (each.data == nullptr && each.map.units() > 0)) {
    return error(StatusCode::kInvalidArgument, "tensor '", spec.name, "' into parameter '",
                 each.parameter, "': the map does not fit its ", spec.units(), " units of ", unit,
                 " bytes");
  }
  return {};
}

// If two maps wrote the same unit, its final value would depend on their order.
Status check_apart(const MappedWeights& weights) {
  struct Memory {
    std::vector<PlacedMap> placed;
    std::vector<const WeightMap*> maps;
  };
  std::map<const std::byte*, Memory> memories;
  for (const WeightMap& each : weights.maps) {
    Memory& memory = memories[each.data];
    memory.placed.push_back({&each.map, 0, each.unit_bytes});
    memory.maps.push_back(&each);
  }
  for (const auto& [data, memory] : memories) {
    const auto met = find_meeting(memory.placed, MapSide::kTarget);
    if (!met) continue;
    const WeightMap &one = *memory.maps[met->first], &other = *memory.maps[met->second];
    return error(StatusCode::kInvalidArgument, "tensors '", weights.layout[one.tensor].name,
                 "' and '", weights.layout[other.tensor].name,
                 "' are mapped into the same units of '", one.parameter, "'");
  }
  return {};
}

// Marks as `counted` the maps that together have each unit of the tensor exactly once, unconverted:
// a single map if it has all units; otherwise all unconverted maps if together they do; otherwise
// none. Commits also write the maps that are not counted.
void count_maps(MappedWeights& weights, std::uint32_t tensor) {
  MappedWeights::Tensor& mapped = weights.tensors[tensor];
  const std::uint64_t units = weights.layout[tensor].units();
  std::vector<const StridedMap*> exact;
  for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
    if (weights.maps[m].cast != ValueCast::kNone) {
      mapped.converted = true;
      continue;
    }
    const StridedMap* const alone = &weights.maps[m].map;
    if (units > 0 && covers_once(std::span(&alone, 1), units)) {
      weights.counted[m] = mapped.complete = true;
      mapped.contiguous = mapped.maps == 1 && alone->plain();
      return;
    }
    exact.push_back(alone);
  }
  mapped.complete = covers_once(exact, units);
  if (!mapped.complete) return;
  for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
    weights.counted[m] = weights.maps[m].cast == ValueCast::kNone;
  }
}

}  // namespace

std::vector<const WeightMap*> MappedWeights::maps_of(std::uint32_t tensor,
                                                     bool counted_only) const {
  std::vector<const WeightMap*> found;
  const Tensor& mapped = tensors[tensor];
  for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
    if (counted[m] || !counted_only) found.push_back(&maps[m]);
  }
  return found;
}

Status MappedWeights::fill(MappedParts parts) {
  for (const WeightMap& each : parts.maps) {
    DRIFTLESS_RETURN_IF_ERROR(check_map(parts.layout, each));
  }
  layout = std::move(parts.layout);
  maps = std::move(parts.maps);
  std::erase_if(maps, [](const WeightMap& each) { return each.map.units() == 0; });
  writer = std::move(parts.writer);
  memory = parts.memory ? std::move(parts.memory) : make_host_memory();
  only_rule = std::move(parts.only_rule);
  tensors.resize(layout.size());
  std::stable_sort(maps.begin(), maps.end(),
                   [](const WeightMap& a, const WeightMap& b) { return a.tensor < b.tensor; });
  counted.assign(maps.size(), false);
  for (std::uint32_t m = 0; m < maps.size(); ++m) {
    Tensor& mapped = tensors[maps[m].tensor];
    if (mapped.maps++ == 0) mapped.first_map = m;
  }
  for (const std::uint32_t tensor : parts.external) {
    if (tensor >= layout.size() || !writer) {
      return error(StatusCode::kInvalidArgument, "external tensor number ", tensor,
                   writer ? ", expected one below " : " has no writer; tensors: ", layout.size());
    }
    tensors[tensor].external = true;
  }
  for (auto& [tensor, why] : parts.refused) {
    if (tensor < layout.size()) tensors[tensor].why_refused = std::move(why);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_apart(*this));
  proven = contiguous = true;
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    Tensor& mapped = tensors[tensor];
    mapped.key = digest_tensor_key(layout[tensor].name);
    count_maps(*this, tensor);
    const bool ours = !mapped.external && mapped.why_refused.empty();
    proven = proven && mapped.complete && ours;
    contiguous = contiguous && (mapped.contiguous || mapped.maps == 0) && ours;
  }
  return plan_shares(*this);
}

Status MappedWeights::check_summed() const {
  for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    const Tensor& mapped = tensors[tensor];
    const bool whole = mapped.complete || mapped.maps == 0;
    if (whole && !mapped.external && mapped.why_refused.empty()) continue;
    return error(StatusCode::kInvalidArgument, "tensor '", layout[tensor].name,
                 "' is held in part or converted, so its digest cannot be computed here");
  }
  return {};
}

Status MappedWeights::sum_state() {
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<Digest> read, read_sums(*this));
  sums = make_sums(*this, std::move(read));
  if (!summed) return {};
  state.digest = Digest();
  for (const TensorShare& share : sums->shares.tensors) state.digest += share.digest;
  return {};
}

namespace {

class MappedNeeds final : public TargetNeeds {
 public:
  explicit MappedNeeds(std::shared_ptr<const MappedWeights> weights)
      : weights_(std::move(weights)) {}

  [[nodiscard]] bool has(std::uint32_t tensor, const TensorBlock* block) const override {
    const MappedWeights::Tensor& mapped = weights_->tensors[tensor];
    // A refused tensor needs no blocks: the rows of a frame's table show whether it changes.
    if (mapped.external || mapped.complete) return true;
    if (block == nullptr) return mapped.maps > 0;
    const Result<StridedMap> units = map_of(block->place, weights_->layout[tensor].units());
    if (!units.ok()) return mapped.maps > 0;
    for (std::uint32_t m = mapped.first_map; m < mapped.first_map + mapped.maps; ++m) {
      if (meet(weights_->maps[m].map, *units, MapSide::kSource)) return true;
    }
    return false;
  }

 private:
  std::shared_ptr<const MappedWeights> weights_;
};

}  // namespace

std::shared_ptr<const TargetNeeds> needs_of(const std::shared_ptr<const MappedWeights>& weights) {
  const auto everything = [&](const MappedWeights::Tensor& tensor) {
    return tensor.external || tensor.complete;
  };
  if (std::all_of(weights->tensors.begin(), weights->tensors.end(), everything)) return nullptr;
  return std::make_shared<MappedNeeds>(weights);
}

}  // namespace driftless
