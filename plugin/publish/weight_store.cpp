// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/weight_store.h"

#include <algorithm>

namespace driftless {

WeightStore::WeightStore(const WeightLayout& layout, std::vector<OwnedTensor> owned,
                         PublisherDevice* device, std::shared_ptr<WeightMemory> memory,
                         unsigned threads)
    : layout_(&layout),
      owned_(std::move(owned)),
      data_(owned_.size()),
      device_(device),
      memory_(std::move(memory)),
      threads_(threads) {}

std::vector<std::uint32_t> WeightStore::owned_tensors() const {
  std::vector<std::uint32_t> tensors;
  for (const OwnedTensor& owned : owned_) {
    if (tensors.empty() || tensors.back() != owned.tensor()) tensors.push_back(owned.tensor());
  }
  return tensors;
}

std::vector<PairedTensor> WeightStore::offer(const std::vector<bool>* tensors) const {
  std::vector<PairedTensor> batch;
  for (std::uint32_t i = 0; i < owned_.size(); ++i) {
    if (tensors != nullptr && !(*tensors)[owned_[i].tensor()]) continue;
    batch.push_back({i, data_[i], memory_kind()});
  }
  return batch;
}

Status WeightStore::recut(std::span<const BlockCut> cuts) {
  std::vector<OwnedTensor> owned;
  for (const OwnedTensor& each : owned_) {
    const auto cut = std::ranges::lower_bound(cuts, each.tensor(), {}, &BlockCut::tensor);
    const bool wanted = cut != cuts.end() && cut->tensor == each.tensor();
    DRIFTLESS_ASSIGN_OR_RETURN(
        owned.emplace_back(),
        OwnedTensor::make(each.tensor(), (*layout_)[each.tensor()],
                          each.block() != nullptr ? each.block()->box : TensorBox(),
                          wanted ? &*cut : nullptr));
  }
  owned_ = std::move(owned);
  return {};
}

Status WeightStore::write(std::uint32_t number, const std::byte* from) {
  const std::uint64_t size = size_bytes(number);
  if (device_ != nullptr) return device_->copy(data_[number], from, size);
  std::copy_n(from, size, data_[number]);
  return {};
}

Result<Digest> WeightStore::digest(const TensorSpec& tensor, const BlockPlace& place,
                                   const std::byte* units, MemoryKind kind) const {
  const DigestTensorKey key = digest_tensor_key(tensor.name);
  const unsigned unit = unit_bytes(tensor.dtype);
  const DensePiece all{place.first * unit,
                       {units, place.units * unit},
                       kind,
                       place.contiguous() ? nullptr : &place,
                       0};
  std::vector<TensorBytes> stretches;
  DRIFTLESS_RETURN_IF_ERROR(all.each_stretch(unit, [&](const DensePiece& stretch) {
    stretches.push_back({stretch, &key});
    return Status();
  }));
  if (kind == MemoryKind::kHost) return digest_on_host(stretches, threads_);
  // On the device, even if the store lies in pinned memory: the host cannot read the offered bytes.
  return device_->memory()->digest(stretches, threads_);
}

Result<std::span<const std::byte>> WeightStore::take_whole(const PairedTensor& offered,
                                                           FoundChanges& found) {
  std::byte* const kept = data_[offered.number];
  const std::span<const std::byte> taken = bytes(offered.number);
  // For an anchor the store itself is offered.
  if (kept != offered.new_data) std::copy_n(offered.new_data, taken.size(), kept);
  DRIFTLESS_ASSIGN_OR_RETURN(const Digest sum, digest({offered.number, kept, memory_kind()}));
  found.digests[owned_[offered.number].tensor()] += sum;
  return taken;
}

}  // namespace driftless
