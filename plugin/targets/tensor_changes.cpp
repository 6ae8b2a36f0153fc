// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/tensor_changes.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/targets/version_fold.h"
#include "plugin/targets/version_stager.h"

namespace driftless {
namespace {

// The changes of one tensor: its pieces in the buckets of each version that changes it, in the
// order of the versions.
struct TensorVersions {
  std::uint32_t tensor = 0;
  std::vector<std::span<const BucketPiece>> versions;
  std::optional<UnitChanges> decoded;  // instead of pieces: all changes, folded
};

// Folds the changes of one tensor.
class TensorFold {
 public:
  TensorFold(const WeightLayout& layout, TensorVersions& versions, std::vector<DeltaPiece>& pieces,
             DeltaPieces::Memory& memory, bool old_values)
      : layout_(layout),
        versions_(versions),
        pieces_(pieces),
        memory_(memory),
        old_values_(old_values),
        width_(unit_bytes(layout[versions.tensor].dtype)) {}

  Status make() {
    if (versions_.decoded) {
      take(std::move(*versions_.decoded));
    } else if (versions_.versions.size() == 1) {
      DRIFTLESS_RETURN_IF_ERROR(decode());
    } else {
      DRIFTLESS_RETURN_IF_ERROR(fold());
    }
    if (old_values_) memory_.old_values.resize(memory_.offsets.size() * width_);
    std::uint64_t at = 0;
    for (DeltaPiece& piece : pieces_) {
      piece.offsets = memory_.offsets.data() + at;
      if (old_values_) piece.old_values = memory_.old_values.data() + at * width_;
      if (piece.values == nullptr) piece.values = memory_.values.data() + at * width_;
      at += piece.count;
    }
    return {};
  }

 private:
  // For one version: the values stay where they are.
  Status decode() {
    return walk_pieces(
        layout_, versions_.tensor, versions_.versions.front(), [&](const DeltaView& delta) {
          for (std::size_t at = 0; at < delta.offsets.size(); at += kMaxPieceUnits) {
            const auto some = delta.offsets.subspan(
                at, std::min<std::size_t>(kMaxPieceUnits, delta.offsets.size() - at));
            memory_.offsets.insert(memory_.offsets.end(), some.begin(), some.end());
            pieces_.push_back({versions_.tensor, static_cast<std::uint32_t>(some.size()),
                               delta.origin, nullptr, delta.values + at * width_, nullptr});
          }
        });
  }

  Status fold() {
    UnitChanges all;
    for (const std::span<const BucketPiece> version : versions_.versions) {
      UnitChanges next;
      DRIFTLESS_RETURN_IF_ERROR(
          walk_pieces(layout_, versions_.tensor, version, [&](const DeltaView& delta) {
            for (const std::uint32_t offset : delta.offsets) {
              next.positions.push_back(delta.origin + offset);
            }
            const std::span<const std::byte> values = delta.value_bytes();
            next.values.insert(next.values.end(), values.begin(), values.end());
          }));
      sort_changes(next, width_);
      if (!all.positions.empty()) next = merge_changes(all, next, width_);
      all = std::move(next);
    }
    take(std::move(all));
    return {};
  }

  void take(UnitChanges all) {
    memory_.values = std::move(all.values);
    for (const std::uint64_t position : all.positions) add(position);
  }

  void add(std::uint64_t position) {
    const bool joins = !pieces_.empty() && pieces_.back().count < kMaxPieceUnits &&
                       position - pieces_.back().origin < std::numeric_limits<std::uint32_t>::max();
    if (!joins) pieces_.push_back({versions_.tensor, 0, position, nullptr, nullptr, nullptr});
    DeltaPiece& piece = pieces_.back();
    memory_.offsets.push_back(static_cast<std::uint32_t>(position - piece.origin));
    ++piece.count;
  }

  const WeightLayout& layout_;
  TensorVersions& versions_;
  std::vector<DeltaPiece>& pieces_;
  DeltaPieces::Memory& memory_;
  bool old_values_;
  unsigned width_;
};

// Folds the changes of these tensors: O(changed), on the weights' threads. kCorrupt if the
// positions of a block do not ascend within one version. The buckets must outlive the result. It
// has room for old values, unless the memory keeps those itself (measures_parts()).
Result<DeltaPieces> fold_deltas(const MappedWeights& weights, std::span<TensorVersions> tensors) {
  const bool old_values = !weights.memory->measures_parts();
  DeltaPieces fold;
  fold.memory.resize(tensors.size());
  std::vector<std::vector<DeltaPiece>> pieces(tensors.size());
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(tensors.size(), weights.threads, [&](std::size_t i, unsigned) {
        return TensorFold(weights.layout, tensors[i], pieces[i], fold.memory[i], old_values).make();
      }));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    fold.pieces.insert(fold.pieces.end(), pieces[i].begin(), pieces[i].end());
    fold.units += fold.memory[i].offsets.size();
  }
  return fold;
}

constexpr std::uint64_t kMaxEffectFrameBytes = std::uint64_t{1} << 40;

// A view that reads the weights through their maps. They outlive it.
WeightView mapped_view(const MappedWeights& weights) {
  WeightView view;
  view.name = weights.memory->kind() == MemoryKind::kHost ? "memory" : "the GPU's memory";
  view.layout = &weights.layout;
  view.held = [&weights](std::size_t tensor) {
    const MappedWeights::Tensor& mapped = weights.tensors[tensor];
    if (mapped.maps == 0) return HeldShare::kNothing;
    return mapped.complete ? HeldShare::kAll : HeldShare::kSome;
  };
  view.bytes = [&weights](std::size_t number, std::uint64_t offset,
                          std::span<std::byte> scratch) -> Result<const std::byte*> {
    const auto tensor = static_cast<std::uint32_t>(number);
    const MappedWeights::Tensor& mapped = weights.tensors[tensor];
    const unsigned unit = unit_bytes(weights.layout[tensor].dtype);
    if (mapped.contiguous && weights.memory->kind() == MemoryKind::kHost) {
      return static_cast<const std::byte*>(weights.map_of(tensor).at(offset / unit));
    }
    std::fill(scratch.begin(), scratch.end(), std::byte{0});
    DRIFTLESS_RETURN_IF_ERROR(weights.memory->read(weights.maps_of(tensor, mapped.complete),
                                                   offset / unit, scratch.size() / unit,
                                                   scratch.data()));
    return static_cast<const std::byte*>(scratch.data());
  };
  return view;
}

// Whether maps of the tensor have all of these units.
bool has_units(const MappedWeights& weights, std::uint32_t tensor, std::uint64_t first,
               std::uint64_t count) {
  const MappedWeights::Tensor& mapped = weights.tensors[tensor];
  const std::span<const WeightMap> maps =
      std::span(weights.maps).subspan(mapped.first_map, mapped.maps);
  for (std::uint64_t at = first; at < first + count;) {
    const std::uint64_t from = at;
    for (const WeightMap& map : maps) {
      const StridedMap::Run run = map.map.run_at(at);
      if (run.target == StridedMap::kOutside) continue;
      at = run.end;
      break;
    }
    if (at == from) return false;
  }
  return true;
}

// Reads old units for blocks that are coded relative to them. The weights outlive it.
OldUnits mapped_units(const MappedWeights& weights) {
  return [&weights, view = mapped_view(weights)](std::uint32_t tensor, std::uint64_t first,
                                                 std::uint64_t count, std::byte* scratch) {
    if (!weights.tensors[tensor].complete && !has_units(weights, tensor, first, count)) {
      return Result<const std::byte*>(
          error(StatusCode::kUnsupported, "units ", first, " to ", first + count - 1,
                " are not all held here, and 'compact' needs the old values of all of a block; "
                "publish indices, deltas or deltas_zstd"));
    }
    const unsigned width = unit_bytes(weights.layout[tensor].dtype);
    return view.bytes(tensor, first * width, {scratch, count * width});
  };
}

// Whether maps of the tensor have the whole block.
bool has_block(const MappedWeights& weights, std::uint32_t tensor, const BlockPlace& place) {
  if (weights.tensors[tensor].complete) return true;
  for (std::uint64_t unit = 0; unit < place.units; unit += place.run) {
    const std::uint64_t run = std::min(place.run, place.units - unit);
    if (!has_units(weights, tensor, place.at(unit), run)) return false;
  }
  return true;
}

// FoldOptions::there: decodes blocks in the memory of the weights.
Result<bool> decode_mapped(const MappedWeights& weights, std::span<CompactUnits> blocks,
                           std::span<const std::uint32_t> tensors) {
  std::map<std::uint32_t, std::vector<const WeightMap*>> maps;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint32_t tensor = tensors[i];
    if (!has_block(weights, tensor, blocks[i].place)) return false;
    const auto [entry, fresh] = maps.try_emplace(tensor);
    if (fresh) entry->second = weights.maps_of(tensor, weights.tensors[tensor].complete);
    blocks[i].maps = entry->second;
  }
  return weights.memory->decode_compact(blocks);
}

}  // namespace

Status decode_ahead(const std::shared_ptr<const MappedWeights>& weights, const MappedFile& part,
                    DecodedBlocks& decoded) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const Frame frame,
      Frame::decode(part.bytes(), weights->layout, max_frame_body_bytes(weights->layout)));
  std::vector<std::uint32_t> wanted;
  for (std::uint32_t tensor = 0; tensor < weights->tensors.size(); ++tensor) {
    const MappedWeights::Tensor& mapped = weights->tensors[tensor];
    if (mapped.maps > 0 && !mapped.external && (!mapped.converted || mapped.complete)) {
      wanted.push_back(tensor);
    }
  }
  const std::shared_ptr<const TargetNeeds> needs = needs_of(weights);
  return decode_frame(weights->layout, frame, mapped_units(*weights),
                      {wanted, needs.get(), weights->threads}, decoded);
}

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

Status TensorChanges::fold(DecodedBlocks decoded) {
  DRIFTLESS_RETURN_IF_ERROR(check_followed());
  const auto all = [this](bool (VersionSource::*is)() const) {
    return std::all_of(versions_.begin(), versions_.end(),
                       [is](const VersionSource& each) { return (each.*is)(); });
  };
  DRIFTLESS_RETURN_IF_ERROR(all(&VersionSource::positional)      ? fold_versions(false)
                            : all(&VersionSource::has_positions) ? fold_coded(std::move(decoded))
                                                                 : fold_effect());
  note_external();
  return {};
}

Status TensorChanges::fold_external() {
  DRIFTLESS_RETURN_IF_ERROR(check_followed());
  DRIFTLESS_RETURN_IF_ERROR(fold_versions(true));
  note_external();
  return {};
}

void TensorChanges::note_external() {
  external_.clear();
  for (const DeltaPiece& piece : pieces_.pieces) {
    if (!weights_->tensors[piece.tensor].external) continue;
    if (external_.empty() || external_.back() != piece.tensor) external_.push_back(piece.tensor);
  }
}

// Folds positional versions for the tensors that are held, or only for the writer's.
Status TensorChanges::fold_versions(bool external_only) {
  std::map<std::uint32_t, TensorVersions> by_tensor;
  for (const VersionSource& version : versions_) {
    for (const TensorChange& change : version.changes()) {
      const MappedWeights::Tensor& mapped = weights_->tensors[change.tensor];
      if (!mapped.external && (mapped.maps == 0 || external_only)) continue;
      TensorVersions& all = by_tensor[change.tensor];
      all.tensor = change.tensor;
      all.versions.push_back(version.pieces(change));
    }
  }
  std::vector<TensorVersions> tensors;
  for (auto& [index, all] : by_tensor) tensors.push_back(std::move(all));
  DRIFTLESS_ASSIGN_OR_RETURN(pieces_, fold_deltas(*weights_, tensors));
  return {};
}

// Ok if the old units that decoding needs are readable here, with the tensor's own bits.
Status TensorChanges::check_readable() const {
  for (const VersionSource& version : versions_) {
    for (const TensorChange& change : version.changes()) {
      if (version.has_positions() && version.compact(change).empty()) continue;
      const MappedWeights::Tensor& mapped = weights_->tensors[change.tensor];
      const bool converted = mapped.converted && !mapped.complete;
      if (!mapped.external && !converted) continue;
      return error(StatusCode::kUnsupported, version.version().path, ": is in '",
                   info(version.version().encoding).name, "', which changes a tensor's own bits, ",
                   "but '", weights_->layout[change.tensor].name,
                   converted ? "' is converted here" : "' is written by the engine's loader",
                   "; publish indices, deltas or deltas_zstd");
    }
  }
  return {};
}

// Folds a chain in which some versions are in `compact`, the others positional.
Status TensorChanges::fold_coded(DecodedBlocks decoded) {
  DRIFTLESS_RETURN_IF_ERROR(check_readable());
  std::set<std::uint32_t> held;
  for (const std::uint32_t tensor : changed_tensors(versions_)) {
    const MappedWeights::Tensor& mapped = weights_->tensors[tensor];
    if (mapped.maps > 0 || mapped.external) held.insert(tensor);
  }
  const std::vector<std::uint32_t> wanted(held.begin(), held.end());
  const std::shared_ptr<const TargetNeeds> needs = needs_of(weights_);
  const unsigned threads = weights_->memory->threads(weights_->threads);
  const auto there = [this](std::span<CompactUnits> blocks, std::span<const std::uint32_t> of) {
    return decode_mapped(*weights_, blocks, of);
  };
  DRIFTLESS_ASSIGN_OR_RETURN(auto folded,
                             fold_chain(weights_->layout, versions_, mapped_units(*weights_),
                                        {wanted, needs.get(), threads, there, &decoded}));
  std::vector<TensorVersions> tensors;
  for (auto& [tensor, changes] : folded) {
    if (!changes.positions.empty()) tensors.push_back({tensor, {}, std::move(changes)});
  }
  DRIFTLESS_ASSIGN_OR_RETURN(pieces_, fold_deltas(*weights_, tensors));
  return {};
}

// For chains with `xor` or `overwrite`: computes the new bytes of each changed tensor, and takes
// the differences from the present ones as changes.
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
  for (const auto& [tensor, pieces] : by_tensor) tensors.push_back({tensor, {pieces}, {}});
  DRIFTLESS_ASSIGN_OR_RETURN(pieces_, fold_deltas(*weights_, tensors));
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
  // Looks only at the low 16 bits (8 for a byte): if no new value has a pattern there, that pattern
  // with zeros above it is absent, too.
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
      const Status written = piece.each_stretch(width(tensor), [&](const DensePiece& stretch) {
        std::memcpy(data + stretch.byte_offset, stretch.bytes.data(), stretch.bytes.size());
        return Status();
      });
      static_cast<void>(written);  // nothing in it fails
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
