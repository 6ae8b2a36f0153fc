// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/rank_offers.h"

#include <algorithm>

namespace driftless {
namespace {

// The box of each tensor that a source offers; empty for a whole tensor.
Result<std::vector<TensorBox>> boxes_of(const WeightSource& weights) {
  const std::span<const TensorSpec> tensors = weights.tensors();
  std::vector<TensorBox> boxes(weights.boxes().begin(), weights.boxes().end());
  if (boxes.empty()) boxes.resize(tensors.size());
  if (boxes.size() != tensors.size()) {
    return error(StatusCode::kInvalidArgument, "the source offers ", tensors.size(),
                 " tensors, and boxes of ", boxes.size());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(tensors[i], boxes[i]));
    if (place.units == tensors[i].units()) boxes[i] = {};
  }
  return boxes;
}

}  // namespace

OfferMessage RankOffers::open(const WeightSource& base) {
  OfferMessage mine;
  offered_.assign(base.tensors().begin(), base.tensors().end());
  const Result<std::vector<TensorBox>> boxes = boxes_of(base);
  mine.status = boxes.status();
  if (boxes.ok()) boxes_ = *boxes;
  mine.tensors = offered_;
  mine.boxes = boxes_;
  mine.left.assign(base.left_to_others().begin(), base.left_to_others().end());
  return mine;
}

Result<std::vector<OwnedTensor>> RankOffers::owned_parts(const AssemblyMessage& assembly,
                                                         const WeightLayout& layout,
                                                         unsigned rank) {
  std::map<std::uint32_t, const BlockCut*> cuts;
  for (const BlockCut& cut : assembly.cuts) cuts[cut.tensor] = &cut;
  std::set<std::uint32_t> dropped;
  for (const auto& [owner, first, count] : assembly.dropped) {
    for (std::uint32_t i = 0; i < count && owner == rank; ++i) dropped.insert(first + i);
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ours;  // tensor, number of the offer
  for (std::uint32_t i = 0; i < offered_.size(); ++i) {
    const auto index = layout.find(offered_[i].name);
    if (index && !dropped.contains(i)) ours.emplace_back(*index, i);
  }
  std::ranges::sort(ours);
  number_.assign(offered_.size(), kNotOurs);
  std::vector<OwnedTensor> owned;
  for (const auto& [tensor, offer] : ours) {
    const auto cut = cuts.find(tensor);
    number_[offer] = static_cast<std::uint32_t>(owned.size());
    DRIFTLESS_ASSIGN_OR_RETURN(owned.emplace_back(),
                               OwnedTensor::make(tensor, offered_[offer], boxes_[offer],
                                                 cut != cuts.end() ? cut->second : nullptr));
  }
  find_copies(assembly, layout, rank, dropped);
  return owned;
}

void RankOffers::find_copies(const AssemblyMessage& assembly, const WeightLayout& layout,
                             unsigned rank, const std::set<std::uint32_t>& dropped) {
  std::map<std::string_view, unsigned> blocks;  // how many this rank publishes, by tensor
  for (std::uint32_t i = 0; i < offered_.size(); ++i) {
    if (!dropped.contains(i)) ++blocks[offered_[i].name];
  }
  copies_ = dropped;
  for (const auto& [owner, offer] : assembly.copied) {
    if (owner != rank || offer >= offered_.size()) continue;
    const std::string& name = offered_[offer].name;
    const auto tensor = layout.find(name);
    if (blocks[name] == 1 && tensor) {
      kept_copies_[offer] = *tensor;
    } else {
      copies_.insert(offer);
    }
  }
}

Status RankOffers::check_source(const WeightSource& weights) const {
  const std::span<const TensorSpec> tensors = weights.tensors();
  for (std::size_t i = 0; i < std::max(tensors.size(), offered_.size()); ++i) {
    if (i < tensors.size() && i < offered_.size() && tensors[i] == offered_[i]) continue;
    const TensorSpec& odd = i < tensors.size() ? tensors[i] : offered_[i];
    return error(StatusCode::kWrongLayout, "tensor '", odd.name, "' (number ", i,
                 "): the weights offered are not those that the publisher was opened with");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<TensorBox> boxes, boxes_of(weights));
  if (boxes == boxes_) return {};
  return error(StatusCode::kWrongLayout,
               "the blocks offered are not those that the publisher was opened with");
}

// Each tensor must come exactly once: one that a source leaves out would look unchanged.
Status RankOffers::visit(WeightSource& weights, bool on_gpu,
                         const std::function<Status(std::span<const PairedTensor>)>& use,
                         const std::function<Status(const OfferedTensor&)>& copy) const {
  std::vector<bool> seen(number_.size());
  DRIFTLESS_RETURN_IF_ERROR(weights.visit([&](std::span<const OfferedTensor> offered) -> Status {
    std::vector<PairedTensor> batch;
    for (const auto& [number, data, memory] : offered) {
      if (number >= number_.size()) {
        return error(StatusCode::kInvalidArgument, "the source offered tensor number ", number,
                     " of ", number_.size());
      }
      const std::string& name = offered_[number].name;
      if (seen[number]) {
        return error(StatusCode::kInvalidArgument, "the source offered tensor '", name, "' twice");
      }
      seen[number] = true;
      if (memory != MemoryKind::kHost && !on_gpu) {
        return error(StatusCode::kUnsupported, "tensor '", name,
                     "' lies on a GPU, and this publisher compares in host memory: set `snapshot` "
                     "to pinned, device or none");
      }
      if (copies_.contains(static_cast<std::uint32_t>(number))) {
        DRIFTLESS_RETURN_IF_ERROR(copy({number, data, memory}));
      }
      if (number_[number] == kNotOurs) continue;
      batch.push_back({number_[number], data, memory});
    }
    return use(batch);
  }));
  const auto missing = std::ranges::find(seen, false);
  if (missing == seen.end()) return {};
  return error(StatusCode::kInvalidArgument, "the source ended without tensor '",
               offered_[static_cast<std::size_t>(missing - seen.begin())].name, "'");
}

Result<std::vector<NewValues>> RankOffers::new_values(
    std::span<const Publisher::NewTensor> values) const {
  std::vector<NewValues> blocks;
  std::vector<bool> seen(number_.size());
  for (const Publisher::NewTensor& value : values) {
    if (value.tensor >= number_.size()) {
      return error(StatusCode::kInvalidArgument, "capture() of tensor number ", value.tensor,
                   " of ", number_.size());
    }
    const TensorSpec& spec = offered_[value.tensor];
    if (seen[value.tensor]) {
      return error(StatusCode::kInvalidArgument, "capture() of tensor '", spec.name, "' (number ",
                   value.tensor, ") twice in one call");
    }
    seen[value.tensor] = true;
    const std::optional<ValueCast> cast = value_cast(value.dtype, spec.dtype);
    const bool known =
        cast == ValueCast::kNone || cast == ValueCast::kF32ToBF16 || cast == ValueCast::kF32ToF16;
    if (!known) {
      return error(StatusCode::kUnsupported, "tensor '", spec.name, "' is ", info(spec.dtype).name,
                   ", and its new values are ", info(value.dtype).name,
                   ": expected the same type, or float32 for a type of 16 bits");
    }
    if (number_[value.tensor] == kNotOurs) continue;
    blocks.push_back({number_[value.tensor], value.data, *cast, value.memory});
  }
  return blocks;
}

Result<std::vector<LivePlace>> RankOffers::find_places(WeightSource& live, bool on_gpu) {
  std::vector<LivePlace> places(store_->owned().size());
  DRIFTLESS_RETURN_IF_ERROR(visit(
      live, on_gpu,
      [&](std::span<const PairedTensor> batch) {
        for (const auto& [number, data, memory] : batch) places[number] = {data, memory};
        return Status();
      },
      [&](const OfferedTensor& copy) {
        const auto number = static_cast<std::uint32_t>(copy.tensor);
        live_copies_[number] = copy;
        if (live.watched(number)) watched_copies_.insert(number);
        return Status();
      }));
  for (std::size_t i = 0; i < number_.size(); ++i) {
    if (number_[i] != kNotOurs) places[number_[i]].watched = live.watched(i);
  }
  return places;
}

Status RankOffers::digest_copy(const OfferedTensor& copy, TensorDigests& digests) const {
  const auto number = static_cast<std::uint32_t>(copy.tensor);
  DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(offered_[number], boxes_[number]));
  DRIFTLESS_ASSIGN_OR_RETURN(const Digest digest,
                             store_->digest(offered_[number], place, copy.data, copy.memory));
  digests.push_back({number, digest});
  return {};
}

Status RankOffers::look_at_copy(const OfferedTensor& copy) const {
  const auto number = static_cast<std::uint32_t>(copy.tensor);
  const auto lay = live_copies_.find(number);
  const bool there = lay != live_copies_.end() && lay->second.data == copy.data;
  if (there || offered_[number].units() == 0) return {};
  return moved_error(offered_[number].name);
}

Status RankOffers::observe_copies(PublisherDevice* device) {
  seen_copies_.clear();
  if (watched_copies_.empty()) return {};
  if (device != nullptr) DRIFTLESS_RETURN_IF_ERROR(device->wait_for_trainer());
  for (const std::uint32_t number : watched_copies_) {
    DRIFTLESS_RETURN_IF_ERROR(digest_copy(live_copies_.at(number), seen_copies_));
  }
  return {};
}

Status RankOffers::digest_live_copies(TensorDigests& digests) const {
  digests = seen_copies_;
  for (const auto& [number, copy] : live_copies_) {
    if (watched_copies_.contains(number)) continue;
    DRIFTLESS_RETURN_IF_ERROR(digest_copy(copy, digests));
  }
  return {};
}

void RankOffers::add_kept_copies(const TensorDigests& changed, std::span<const Digest> before,
                                 TensorDigests& digests) const {
  std::map<std::uint32_t, Digest> now;
  for (const auto& [tensor, digest] : changed) now[tensor] = digest;
  for (const auto& [offer, tensor] : kept_copies_) {
    const auto after = now.find(tensor);
    digests.push_back({offer, after != now.end() ? after->second : before[tensor]});
  }
}

}  // namespace driftless
