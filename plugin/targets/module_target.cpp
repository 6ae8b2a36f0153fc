#include "plugin/targets/module_target.h"

#include <algorithm>
#include <map>

#include "core/parallel.h"
#include "plugin/targets/fetched_version.h"
#include "plugin/targets/module_change.h"

namespace driftless {
namespace {

class MappedModule final : public ModuleTarget {
 public:
  explicit MappedModule(std::shared_ptr<ModuleWeights> weights) : weights_(std::move(weights)) {}

  [[nodiscard]] const WeightLayout* layout() const override { return &weights_->layout; }
  Status adopt_layout(const WeightLayout& layout) override {
    return weights_->layout.check_same(layout, "the module's checkpoint", "the run");
  }
  [[nodiscard]] TargetState state() const override { return weights_->state; }
  [[nodiscard]] bool proven() const override { return weights_->proven; }
  Status settle() override { return {}; }  // what could not be undone stays so

  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    DRIFTLESS_RETURN_IF_ERROR(check_chain(weights_->state, weights_->layout, chain));
    if (weights_->writer) DRIFTLESS_RETURN_IF_ERROR(weights_->writer->check());
    DRIFTLESS_ASSIGN_OR_RETURN(
        std::vector<VersionSource> sources,
        open_chain(posix_file_system(), std::move(chain), weights_->layout, {}, weights_->threads));
    if (sources.front().version().full()) {
      return stage_module_full(weights_, std::move(sources.front()));
    }
    return stage_module_deltas(weights_, std::move(sources));
  }

 private:
  std::shared_ptr<ModuleWeights> weights_;
};

Status check_map(const WeightLayout& layout, const ModuleMap& each) {
  if (each.tensor >= layout.size()) {
    return error(StatusCode::kInvalidArgument, "a map of tensor number ", each.tensor, " of ",
                 layout.size());
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

// Two maps into one unit would leave it to chance which value it ends with.
Status check_apart(const ModuleWeights& weights) {
  std::map<const std::byte*, std::vector<const ModuleMap*>> by_memory;
  for (const ModuleMap& each : weights.maps) by_memory[each.data].push_back(&each);
  for (auto& [memory, maps] : by_memory) {
    std::sort(maps.begin(), maps.end(), [](const ModuleMap* a, const ModuleMap* b) {
      return a->map.target_offset < b->map.target_offset;
    });
    for (std::size_t i = 0; i < maps.size(); ++i) {
      for (std::size_t j = i + 1;
           j < maps.size() && maps[j]->map.target_offset < maps[i]->map.target_end; ++j) {
        if (!targets_meet(maps[i]->map, maps[j]->map)) continue;
        return error(StatusCode::kInvalidArgument, "tensors '",
                     weights.layout[maps[i]->tensor].name, "' and '",
                     weights.layout[maps[j]->tensor].name, "' are mapped into the same units of '",
                     maps[i]->parameter, "'");
      }
    }
  }
  return {};
}

// Which maps hold the tensor's own units: one alone that has them all, or all that convert nothing.
// What else there is (tied copies, conversions) is written, and not counted.
void count_maps(ModuleWeights& weights, std::uint32_t tensor) {
  ModuleWeights::Tensor& own = weights.tensors[tensor];
  const std::uint64_t units = weights.layout[tensor].units();
  std::vector<const StridedMap*> exact;
  for (std::uint32_t m = own.first_map; m < own.first_map + own.maps; ++m) {
    if (weights.maps[m].cast != ValueCast::kNone) continue;
    const StridedMap* const alone = &weights.maps[m].map;
    if (units > 0 && covers_once(std::span(&alone, 1), units)) {
      weights.counted[m] = own.complete = true;
      return;
    }
    exact.push_back(alone);
  }
  own.complete = covers_once(exact, units);
  if (!own.complete) return;
  for (std::uint32_t m = own.first_map; m < own.first_map + own.maps; ++m) {
    weights.counted[m] = weights.maps[m].cast == ValueCast::kNone;
  }
}

Status fill(ModuleWeights& weights, ModuleParts parts) {
  for (const ModuleMap& each : parts.maps) {
    DRIFTLESS_RETURN_IF_ERROR(check_map(parts.layout, each));
  }
  weights.layout = std::move(parts.layout);
  weights.maps = std::move(parts.maps);
  weights.writer = std::move(parts.writer);
  weights.memory = parts.memory ? std::move(parts.memory) : make_host_module_memory();
  weights.tensors.resize(weights.layout.size());
  std::stable_sort(weights.maps.begin(), weights.maps.end(),
                   [](const ModuleMap& a, const ModuleMap& b) { return a.tensor < b.tensor; });
  weights.counted.assign(weights.maps.size(), false);
  for (std::uint32_t m = 0; m < weights.maps.size(); ++m) {
    ModuleWeights::Tensor& own = weights.tensors[weights.maps[m].tensor];
    if (own.maps++ == 0) own.first_map = m;
  }
  for (const std::uint32_t tensor : parts.external) {
    if (tensor >= weights.layout.size() || !weights.writer) {
      return error(StatusCode::kInvalidArgument, "external tensor number ", tensor, " of ",
                   weights.layout.size(), weights.writer ? "" : ", without a writer");
    }
    weights.tensors[tensor].external = true;
  }
  for (auto& [tensor, why] : parts.refused) {
    if (tensor < weights.layout.size()) weights.tensors[tensor].why_refused = std::move(why);
  }
  DRIFTLESS_RETURN_IF_ERROR(check_apart(weights));
  weights.proven = true;
  for (std::uint32_t tensor = 0; tensor < weights.layout.size(); ++tensor) {
    ModuleWeights::Tensor& own = weights.tensors[tensor];
    own.key = digest_tensor_key(weights.layout[tensor].name);
    count_maps(weights, tensor);
    weights.proven = weights.proven && own.complete && !own.external && own.why_refused.empty();
  }
  return {};
}

// Every tensor that is held can be summed.
Status check_summed(const ModuleWeights& weights) {
  for (std::uint32_t tensor = 0; tensor < weights.layout.size(); ++tensor) {
    const ModuleWeights::Tensor& own = weights.tensors[tensor];
    const bool whole = own.complete || own.maps == 0;
    if (whole && !own.external && own.why_refused.empty()) continue;
    return error(StatusCode::kInvalidArgument, "tensor '", weights.layout[tensor].name,
                 "' is not held as it is, or not all of it: there is no digest of what is held");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ModuleTarget>> make_module_target(ModuleParts parts,
                                                         const ModuleOptions& options) {
  auto weights = std::make_shared<ModuleWeights>();
  weights->threads = options.threads == 0 ? default_threads() : options.threads;
  DRIFTLESS_RETURN_IF_ERROR(fill(*weights, std::move(parts)));
  weights->summed = weights->proven || options.digest_of_held;
  weights->state.partial = !weights->proven && (options.initial && !options.initial_digest);
  if (options.digest_of_held) {
    DRIFTLESS_RETURN_IF_ERROR(check_summed(*weights));
    weights->state.partial = !weights->proven;
  }
  if (options.initial) {
    weights->state.id = *options.initial;
    weights->state.digest = options.initial_digest.value_or(Digest());
    if (weights->summed) {
      DRIFTLESS_ASSIGN_OR_RETURN(weights->state.digest, digest_of(*weights));
    }
    if (options.initial_digest && weights->state.digest != *options.initial_digest) {
      return error(StatusCode::kMismatch, "the module's weights have digest ",
                   to_hex(weights->state.digest), ", but those that it was loaded from have ",
                   to_hex(*options.initial_digest), ": somebody changed them since");
    }
    weights->state.valid = true;
  }
  return std::unique_ptr<ModuleTarget>(std::make_unique<MappedModule>(std::move(weights)));
}

}  // namespace driftless
