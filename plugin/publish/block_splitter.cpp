// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/block_splitter.h"

#include <algorithm>

#include "formats/bucket.h"

namespace driftless {
namespace {

TensorBox whole_box(const TensorSpec& spec) {
  return {std::vector<std::uint64_t>(spec.shape.size()), spec.shape};
}

}  // namespace

Result<OwnedTensor> OwnedTensor::make(std::uint32_t tensor, const TensorSpec& spec,
                                      const TensorBox& box, const BlockCut* cut) {
  OwnedTensor owned;
  owned.tensor_ = tensor;
  DRIFTLESS_ASSIGN_OR_RETURN(owned.place_, place_of(spec, box));
  const bool all = owned.place_.units == spec.units();
  if (!all) {
    DRIFTLESS_ASSIGN_OR_RETURN(TensorBlock block, TensorBlock::make(tensor, spec, box));
    owned.block_ = std::make_shared<const TensorBlock>(std::move(block));
  }
  if (cut == nullptr || cut->points.empty() || spec.units() == 0) return owned;
  if (cut->dim >= spec.shape.size()) {
    return error(StatusCode::kInvalidArgument, "tensor '", spec.name, "' has ", spec.shape.size(),
                 " dimensions, and cannot be cut along dimension ", cut->dim);
  }
  const TensorBox clipped = all ? whole_box(spec) : box;
  DRIFTLESS_ASSIGN_OR_RETURN(const TensorSpec inside,
                             TensorSpec::make(spec.name, spec.dtype, clipped.sizes));
  const std::uint64_t begin = clipped.offsets[cut->dim], end = begin + clipped.sizes[cut->dim];
  for (std::uint64_t at = begin; at < end;) {
    const auto point = std::ranges::upper_bound(cut->points, at);
    const std::uint64_t next = point != cut->points.end() ? std::min(end, *point) : end;
    if (at == begin && next == end) return owned;  // it lies inside one part
    if (owned.parts_.size() == kMaxBlocksOfTensor) {
      return error(StatusCode::kInvalidArgument, "tensor '", spec.name, "' would be cut into more ",
                   "than ", kMaxBlocksOfTensor, " blocks along dimension ", cut->dim);
    }
    TensorBox part = clipped;
    part.offsets[cut->dim] = at;
    part.sizes[cut->dim] = next - at;
    TensorBox relative = part;
    for (std::size_t d = 0; d < clipped.offsets.size(); ++d) {
      relative.offsets[d] -= clipped.offsets[d];
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const BlockPlace place, place_of(inside, relative));
    DRIFTLESS_ASSIGN_OR_RETURN(TensorBlock block, TensorBlock::make(tensor, spec, std::move(part)));
    owned.parts_.push_back({std::move(block), place});
    at = next;
  }
  // Counts units: in the last dimension, one unit may hold several packed elements.
  owned.length_ = 0;
  for (const Part& part : owned.parts_) {
    owned.begins_.push_back(owned.length_);
    owned.length_ += part.inside.units;
  }
  std::uint64_t outer = 1;
  for (std::uint32_t d = 0; d < cut->dim; ++d) outer *= clipped.sizes[d];
  owned.length_ /= outer;
  for (std::uint64_t& at : owned.begins_) at /= outer;
  owned.begins_.push_back(owned.length_);
  return owned;
}

void BlockSplitter::add(const OwnedTensor& owned, const DeltaView& delta) {
  if (owned_ == nullptr) {
    owned_ = &owned;
    unit_bytes_ = delta.unit_bytes;
    pieces_.resize(owned.parts().size());
  }
  const unsigned width = delta.unit_bytes;
  std::vector<Piece*> open(owned.parts().size());
  std::uint64_t run_begin = 0, run_end = 0, shift = 0;  // of the current part
  std::size_t part = 0;
  for (std::size_t k = 0; k < delta.offsets.size(); ++k) {
    const std::uint64_t position = delta.origin + delta.offsets[k];
    if (position >= run_end || position < run_begin) {
      const std::uint64_t row = position / owned.length_;
      const std::uint64_t column = position % owned.length_;
      const auto after = std::upper_bound(owned.begins_.begin(), owned.begins_.end(), column);
      part = static_cast<std::size_t>(after - owned.begins_.begin()) - 1;
      run_begin = row * owned.length_ + owned.begins_[part];
      run_end = row * owned.length_ + owned.begins_[part + 1];
      shift = row * (owned.begins_[part + 1] - owned.begins_[part]) - run_begin;
    }
    const std::uint64_t inside = position + shift;
    if (open[part] == nullptr) {
      open[part] = &pieces_[part].emplace_back();
      open[part]->origin = inside;
    }
    // The difference fits 32 bits, because the offsets of the delta do.
    Piece& piece = *open[part];
    piece.offsets.push_back(static_cast<std::uint32_t>(inside - piece.origin));
    const std::byte* const value = delta.values + k * width;
    piece.values.insert(piece.values.end(), value, value + width);
  }
}

Status BlockSplitter::take(
    const std::function<Status(const DeltaView& delta, const TensorBlock* block)>& use) {
  if (owned_ == nullptr) return {};
  const OwnedTensor& owned = *owned_;
  owned_ = nullptr;
  Status used;
  for (std::size_t part = 0; part < pieces_.size(); ++part) {
    for (const Piece& piece : pieces_[part]) {
      if (!used.ok()) break;
      used = use({owned.tensor(), unit_bytes_, piece.origin, piece.offsets, piece.values.data()},
                 &owned.parts()[part].block);
    }
  }
  pieces_.clear();
  return used;
}

}  // namespace driftless
