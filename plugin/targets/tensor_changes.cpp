// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/tensor_changes.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "kernels/host_kernels.h"
#include "plugin/targets/version_stager.h"

namespace driftless {
namespace {

constexpr std::uint64_t kMaxEffectFrameBytes = std::uint64_t{1} << 40;

// The weights, to be read through their maps. They outlive it.
WeightView mapped_view(const MappedWeights& weights) {
  WeightView view;
  view.name = weights.memory->kind() == MemoryKind::kHost ? "memory" : "the GPU's memory";
  view.layout = &weights.layout;
  view.held = [&weights](std::size_t tensor) {
    const MappedWeights::Tensor& own = weights.tensors[tensor];
    if (own.maps == 0) return HeldShare::kNothing;
    return own.complete ? HeldShare::kAll : HeldShare::kSome;
  };
  view.bytes = [&weights](std::size_t number, std::uint64_t offset,
                          std::span<std::byte> scratch) -> Result<const std::byte*> {
    const auto tensor = static_cast<std::uint32_t>(number);
    const MappedWeights::Tensor& own = weights.tensors[tensor];
    const unsigned unit = unit_bytes(weights.layout[tensor].dtype);
    if (own.contiguous && weights.memory->kind() == MemoryKind::kHost) {
      return static_cast<const std::byte*>(weights.map_of(tensor).at(offset / unit));
    }
    std::fill(scratch.begin(), scratch.end(), std::byte{0});
    DRIFTLESS_RETURN_IF_ERROR(weights.memory->read(weights.maps_of(tensor, own.complete),
                                                   offset / unit, scratch.size() / unit,
                                                   scratch.data()));
    return static_cast<const std::byte*>(scratch.data());
  };
  return view;
}

}  // namespace

TensorChanges::TensorChanges(std::shared_ptr<const MappedWeights> weights,
                             std::vector<VersionSource> versions)
    : weights_(std::move(weights)), versions_(std::move(versions)) {
  if (!whole()) return;
  for (std::uint32_t tensor = 0; tensor < weights_->tensors.size(); ++tensor) {
    if (weights_->tensors[tensor].external) external_.push_back(tensor);
  }
}

Status TensorChanges::check_followed() const {
  for (const VersionSource& version : versions_) {
    for (const TensorChange& change : version.changes()) {
      const std::string& why = weights_->tensors[change.tensor].why_refused;
      if (why.empty()) continue;
      return error(StatusCode::kUnsupported, "tensor '", weights_->layout[change.tensor].name,
                   "' changes, but cannot be written into this module: ", why,
                   ". Nothing was changed; reload the engine");
    }
  }
  return {};
}

Status TensorChanges::fold() {
  DRIFTLESS_RETURN_IF_ERROR(check_followed());
  const bool positional = std::all_of(versions_.begin(), versions_.end(),
                                      [](const VersionSource& each) { return each.positional(); });
  DRIFTLESS_RETURN_IF_ERROR(positional ? fold_versions() : fold_effect());
  for (const DeltaPiece& piece : pieces_.pieces) {
    if (!weights_->tensors[piece.tensor].external) continue;
    if (external_.empty() || external_.back() != piece.tensor) external_.push_back(piece.tensor);
  }
  return {};
}

// The versions as they are, of the tensors that are held.
Status TensorChanges::fold_versions() {
  std::map<std::uint32_t, TensorVersions> by_tensor;
  for (const VersionSource& version : versions_) {
    for (const TensorChange& change : version.changes()) {
      const MappedWeights::Tensor& own = weights_->tensors[change.tensor];
      if (own.maps == 0 && !own.external) continue;
      TensorVersions& all = by_tensor[change.tensor];
      all.tensor = change.tensor;
      all.versions.push_back(version.pieces(change));
    }
  }
  std::vector<TensorVersions> tensors;
  for (auto& [index, all] : by_tensor) tensors.push_back(std::move(all));
  DRIFTLESS_ASSIGN_OR_RETURN(pieces_, fold_deltas(weights_->layout, tensors, weights_->threads));
  return {};
}

// Whether the tensors that change have their own bits here.
Status TensorChanges::check_readable() const {
  for (const VersionSource& version : versions_) {
    for (const TensorChange& change : version.changes()) {
      const MappedWeights::Tensor& own = weights_->tensors[change.tensor];
      const bool converted = own.converted && !own.complete;
      if (!own.external && !converted) continue;
      return error(StatusCode::kUnsupported, version.version().path, ": is in '",
                   info(version.version().encoding).name, "', which changes a tensor's own bits, ",
                   "but '", weights_->layout[change.tensor].name,
                   converted ? "' is converted here" : "' is written by the engine's loader",
                   "; publish indices, deltas or deltas_zstd");
    }
  }
  return {};
}

// Other encodings: their effect on the weights as they are.
Status TensorChanges::fold_effect() {
  DRIFTLESS_RETURN_IF_ERROR(check_readable());
  StageOptions options;
  options.threads = weights_->memory->threads(weights_->threads);
  std::mutex mutex;
  const auto keep = [&](std::span<const std::byte> frame) -> Status {
    const std::scoped_lock lock(mutex);
    frame_bytes_.emplace_back(frame.begin(), frame.end());
    return {};
  };
  DRIFTLESS_RETURN_IF_ERROR(
      stage_version(mapped_view(*weights_), versions_, options, keep).status());
  std::map<std::uint32_t, std::vector<BucketPiece>> by_tensor;
  frames_.reserve(frame_bytes_.size());  // the buckets point into the frames
  for (const std::vector<std::byte>& each : frame_bytes_) {
    DRIFTLESS_ASSIGN_OR_RETURN(Frame frame,
                               Frame::decode(each, weights_->layout, kMaxEffectFrameBytes));
    frames_.push_back(std::move(frame));
    const BucketView bucket = frames_.back().bucket();
    for (const BucketEntry& entry : bucket.entries) {
      by_tensor[entry.tensor].push_back({bucket, entry});
    }
  }
  std::vector<TensorVersions> tensors;
  for (const auto& [tensor, pieces] : by_tensor) tensors.push_back({tensor, {pieces}});
  DRIFTLESS_ASSIGN_OR_RETURN(pieces_, fold_deltas(weights_->layout, tensors, weights_->threads));
  return {};
}

std::uint64_t TensorChanges::changed_units(std::uint32_t tensor) const {
  if (whole()) return weights_->layout[tensor].units();
  std::uint64_t units = 0;
  for (const DeltaPiece& piece : pieces(tensor)) units += piece.count;
  return units;
}

std::optional<std::uint64_t> TensorChanges::absent_bits(std::uint32_t tensor) const {
  if (whole()) return std::nullopt;
  // Of the low 16 bits (8 of a byte), one pattern that is free makes all above it free, too.
  const unsigned unit = width(tensor);
  std::vector<bool> taken(unit == 1 ? 256 : 65536);
  for (const DeltaPiece& piece : pieces(tensor)) {
    for (std::uint32_t k = 0; k < piece.count; ++k) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, piece.values + std::size_t{k} * unit, std::min(unit, 2U));
      taken[bits] = true;
    }
  }
  const auto free = std::find(taken.rbegin(), taken.rend(), false);
  if (free == taken.rend()) return std::nullopt;
  return static_cast<std::uint64_t>(taken.rend() - free - 1);
}

std::span<const DeltaPiece> TensorChanges::pieces(std::uint32_t tensor) const {
  if (whole()) return {};
  const std::span<const DeltaPiece> all = pieces_.pieces;  // ascending by tensor
  const auto below = [](const DeltaPiece& piece, std::uint32_t index) {
    return piece.tensor < index;
  };
  const auto first = std::lower_bound(all.begin(), all.end(), tensor, below);
  const auto last = std::lower_bound(first, all.end(), tensor + 1, below);
  return {first, last};
}

void TensorChanges::write(std::uint32_t tensor, std::byte* data,
                          std::optional<std::uint64_t> only) const {
  if (whole()) {
    const TensorChange* const change = versions_.front().find(tensor);
    if (change == nullptr) return;  // a tensor without units
    for (const DensePiece& piece : versions_.front().dense(*change)) {
      std::memcpy(data + piece.byte_offset, piece.bytes.data(), piece.bytes.size());
    }
    return;
  }
  const unsigned unit = width(tensor);
  for (const DeltaPiece& piece : pieces(tensor)) {
    std::byte* const units = data + piece.origin * unit;
    if (!only) {
      host_kernels().scatter(units, unit, piece.offsets, piece.count, piece.values);
      continue;
    }
    for (std::uint32_t k = 0; k < piece.count; ++k) {
      const std::byte* const value = piece.values + std::size_t{k} * unit;
      if (std::memcmp(value, &*only, unit) != 0) continue;
      std::memcpy(units + std::size_t{piece.offsets[k]} * unit, value, unit);
    }
  }
}

}  // namespace driftless
