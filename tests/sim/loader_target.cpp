// SPDX-License-Identifier: Apache-2.0
#include "sim/loader_target.h"

#include <utility>

#include "plugin/targets/tensor_changes.h"

namespace driftless::testing {
namespace {

constexpr double kFails = 0.1;  // of the loader's writes; half of their undos then fail, too

class Loader final : public ExternalWriter {
 public:
  Loader(World& world, std::vector<std::byte>& bytes) : world_(world), bytes_(bytes) {}

  Status check(bool /*paused*/) override { return {}; }
  Status stage(std::shared_ptr<const TensorChanges> changes) override {
    changes_ = std::move(changes);
    before_.reset();
    return {};
  }
  Status commit() override {
    DRIFTLESS_RETURN_IF_ERROR(world_.simulation.step());
    before_ = bytes_;
    for (const std::uint32_t tensor : changes_->tensors()) {
      changes_->write(tensor, bytes_.data(), std::nullopt);
    }
    if (world_.calm || !world_.loader_breaks || !world_.random.chance(kFails)) return {};
    stuck_ = world_.random.chance(0.5);
    return error(StatusCode::kIo, "the loader failed in the middle");
  }
  Status undo() override {
    DRIFTLESS_RETURN_IF_ERROR(world_.simulation.step());
    if (std::exchange(stuck_, false)) return error(StatusCode::kIo, "the loader cannot undo");
    if (before_) bytes_ = *std::exchange(before_, std::nullopt);
    return {};
  }
  void drop() override {
    changes_.reset();
    before_.reset();
  }

 private:
  World& world_;
  std::vector<std::byte>& bytes_;  // of the tensor
  std::shared_ptr<const TensorChanges> changes_;
  std::optional<std::vector<std::byte>> before_;
  bool stuck_ = false;
};

}  // namespace

Result<std::unique_ptr<WeightTarget>> make_loader_target(World& world, const WeightLayout& layout,
                                                         Weights& memory,
                                                         const std::optional<Digest>& base) {
  MappedParts parts;
  parts.layout = layout;
  for (std::uint32_t i = 0; i < layout.size(); ++i) {
    const std::uint64_t units = layout[i].units();
    if (layout[i].name == memory.begin()->first || units == 0) continue;
    WeightMap map;
    map.tensor = i;
    map.data = memory.at(layout[i].name).bytes.data();
    map.unit_bytes = unit_bytes(layout[i].dtype);
    map.parameter = layout[i].name;
    DRIFTLESS_ASSIGN_OR_RETURN(
        map.map, StridedMap::make({0, {units}, {1}}, units, {0, {units}, {1}}, units));
    parts.maps.push_back(std::move(map));
  }
  parts.external.push_back(static_cast<std::uint32_t>(*layout.find(memory.begin()->first)));
  parts.writer = std::make_shared<Loader>(world, memory.begin()->second.bytes);
  MappedOptions options;
  options.threads = 1;
  if (base) {
    options.initial = VersionId{};
    options.initial_digest = base;
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<MappedTarget> made,
                             make_mapped_target(std::move(parts), options));
  return std::unique_ptr<WeightTarget>(std::move(made));
}

}  // namespace driftless::testing
