// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/weight_source.h"

#include <algorithm>

namespace driftless {

// Stage s ends at its share of the bytes. Every tensor belongs to the stage that contains its
// middle, so stages differ by less than a tensor.
LayoutStage stage_of(const WeightLayout& layout, unsigned stage, unsigned stages) {
  const double share = static_cast<double>(layout.total_bytes()) / stages;
  double before = 0;
  LayoutStage found;
  for (std::size_t tensor = 0; tensor < layout.size(); ++tensor) {
    const auto size = static_cast<double>(layout[tensor].size_bytes);
    const double middle = before + size / 2;
    before += size;
    const auto owner = share > 0 ? static_cast<unsigned>(middle / share) : 0U;
    if (std::min(owner, stages - 1) != stage) continue;
    if (found.count++ == 0) found.first = tensor;
  }
  return found;
}

CheckpointSource::CheckpointSource(const Checkpoint& checkpoint, unsigned stage, unsigned stages)
    : checkpoint_(&checkpoint) {
  const LayoutStage part = stage_of(checkpoint.layout(), stage, stages);
  first_ = part.first;
  for (std::size_t i = 0; i < part.count; ++i) tensors_.push_back(checkpoint.layout()[first_ + i]);
}

Status CheckpointSource::visit(const std::function<Status(std::span<const OfferedTensor>)>& use) {
  std::vector<OfferedTensor> offered;
  offered.reserve(tensors_.size());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    offered.push_back({i, checkpoint_->tensor(first_ + i).data});
  }
  return use(offered);
}

std::uint64_t framed_bytes(std::uint64_t tensor_bytes, std::string_view name) {
  return tensor_bytes + tensor_bytes / 256 + 4096 + name.size();
}

std::uint64_t anchor_room_bytes(const WeightSource& weights) {
  const std::span<const TensorSpec> tensors = weights.tensors();
  const std::span<const TensorBox> boxes = weights.boxes();
  std::uint64_t bytes = std::uint64_t{1} << 20;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::uint64_t size_bytes = tensors[i].size_bytes;
    const Result<BlockPlace> place =
        place_of(tensors[i], i < boxes.size() ? boxes[i] : TensorBox());
    if (place.ok()) {
      size_bytes = place->units * unit_bytes(tensors[i].dtype);  // otherwise it is refused
    }
    bytes += framed_bytes(size_bytes, tensors[i].name);
  }
  return bytes;
}

}  // namespace driftless
