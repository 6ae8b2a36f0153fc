// SPDX-License-Identifier: Apache-2.0
// Full versions. find_difference() compares every unit of every map with the version's.
// make_dense_change() writes all of them.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/targets/tensor_changes.h"

namespace driftless {
namespace {

constexpr std::uint64_t kCompareUnits = std::uint64_t{1} << 20;  // compared at a time
constexpr std::uint64_t kThereBytes = std::uint64_t{16} << 20;   // the same by the memory itself
// If more than one unit in kDenseShare differs, the version is written whole: pieces would take 4
// bytes and twice the width for each of them.
constexpr std::uint64_t kDenseShare = 8;

class DifferenceFinder {
 public:
  explicit DifferenceFinder(const MappedWeights& weights)
      : weights_(weights), scratch_(std::max(1U, weights.threads)) {
    std::uint64_t held = 0;
    for (const WeightMap& each : weights.maps) held += each.map.units();
    most_ = held / kDenseShare;
    for (Scratch& each : scratch_) {
      each.offsets.resize(kMaxPieceUnits + kDiffSlackUnits);
      each.values.resize(std::size_t{kMaxPieceUnits + kDiffSlackUnits} * 8);
    }
  }

  Result<std::optional<DeltaPieces>> find(const VersionSource& version) {
    for (std::uint32_t tensor = 0; tensor < weights_.layout.size(); ++tensor) {
      const TensorChange* const change = version.find(tensor);
      if (change == nullptr || !weights_.maps_any(tensor)) continue;
      const unsigned width = unit_bytes(weights_.layout[tensor].dtype);
      for (const DensePiece& piece : version.dense(*change)) {
        DRIFTLESS_RETURN_IF_ERROR(piece.each_stretch(
            width, [&](const DensePiece& stretch) { return add(tensor, stretch); }));
        if (found_.units > most_) return std::optional<DeltaPieces>();
      }
    }
    DRIFTLESS_RETURN_IF_ERROR(compare());
    if (found_.units > most_) return std::optional<DeltaPieces>();
    point();
    return std::optional<DeltaPieces>(std::move(found_));
  }

 private:
  struct Scratch {
    std::vector<std::uint32_t> offsets, merged;
    std::vector<std::byte> values;
  };

  Status add(std::uint32_t tensor, const DensePiece& piece) {
    std::uint64_t compared = 0;
    if (!weights_.tensors[tensor].converted) {
      DRIFTLESS_ASSIGN_OR_RETURN(compared, add_there(tensor, piece));
    }
    return add_blocks(tensor, piece, compared);
  }

  // Lets the memory compare the piece. Returns the number of units that it has compared, from the
  // first on; it leaves the others to the host.
  Result<std::uint64_t> add_there(std::uint32_t tensor, const DensePiece& piece) {
    const unsigned width = unit_bytes(weights_.layout[tensor].dtype);
    const std::vector<const WeightMap*> maps = weights_.maps_of(tensor, false);
    const std::uint64_t units = piece.bytes.size() / width;
    std::uint64_t done = 0, count = 0;
    for (; done < units && found_.units <= most_; done += count) {
      count = std::min(kThereBytes / width, units - done);
      const std::uint64_t origin = piece.byte_offset / width + done;
      const std::byte* const values = piece.bytes.data() + done * width;
      DRIFTLESS_ASSIGN_OR_RETURN(
          const bool compared,
          weights_.memory->find_differing(maps, origin, static_cast<std::uint32_t>(count), values,
                                          differing_));
      if (!compared) return done;
      if (!differing_.empty()) DRIFTLESS_RETURN_IF_ERROR(compare());  // keeps the pieces in order
      for (std::span<const std::uint32_t> rest = differing_; !rest.empty();) {
        const auto some = rest.first(std::min<std::size_t>(rest.size(), kMaxPieceUnits));
        keep(tensor, origin, values, some);
        rest = rest.subspan(some.size());
      }
    }
    return done;
  }

  // Keeps the units origin + offsets[k], which become values[offsets[k]].
  void keep(std::uint32_t tensor, std::uint64_t origin, const std::byte* values,
            std::span<const std::uint32_t> offsets) {
    const unsigned width = unit_bytes(weights_.layout[tensor].dtype);
    DeltaPiece piece;
    piece.tensor = tensor;
    piece.origin = origin;
    piece.count = static_cast<std::uint32_t>(offsets.size());
    found_.units += piece.count;
    found_.pieces.push_back(piece);
    DeltaPieces::Memory& memory = found_.memory.emplace_back();
    memory.offsets.assign(offsets.begin(), offsets.end());
    memory.values.resize(offsets.size() * width);
    host_kernels().gather(values, width, offsets.data(), offsets.size(), memory.values.data());
    memory.old_values.resize(memory.values.size());
  }

  // Cuts the piece, from unit `done` on, into blocks, and compares blocks in batches until too many
  // units differ.
  Status add_blocks(std::uint32_t tensor, const DensePiece& piece, std::uint64_t done) {
    const unsigned width = unit_bytes(weights_.layout[tensor].dtype);
    const std::uint64_t units = piece.bytes.size() / width;
    for (; done < units && found_.units <= most_; done += kMaxPieceUnits) {
      DeltaPiece block;
      block.tensor = tensor;
      block.count =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(kMaxPieceUnits, units - done));
      block.origin = piece.byte_offset / width + done;
      block.offsets = all_offsets().data();
      block.values = piece.bytes.data() + done * width;
      blocks_.push_back(block);
      waiting_ += block.count;
      if (waiting_ >= kCompareUnits) DRIFTLESS_RETURN_IF_ERROR(compare());
    }
    return {};
  }

  // Whether the bits can be compared where they lie.
  [[nodiscard]] bool in_place(const ChangePart& part) const {
    return part.map->plain() && weights_.memory->kind() == MemoryKind::kHost;
  }

  // Compares the waiting blocks with the weights. Weights that cannot be compared where they lie
  // are read with place(), as the old values of a change are.
  Status compare() {
    cut();
    std::vector<ChangePart> read;
    for (const ChangePart& part : parts_) {
      if (!in_place(part)) read.push_back(part);
    }
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(parts_.size(), weights_.threads, [&](std::size_t i, unsigned) -> Status {
          if (in_place(parts_[i])) return {};
          const std::size_t size = std::size_t{parts_[i].count} * parts_[i].map->unit_bytes;
          convert_values(parts_[i].map->cast, parts_[i].map->unit_bytes, parts_[i].values(),
                         parts_[i].count, expected_.data() + at_[i]);
          // place() skips units that the map does not have: these count as equal.
          std::memcpy(parts_[i].old_values, expected_.data() + at_[i], size);
          return {};
        }));
    if (!read.empty()) {
      DRIFTLESS_RETURN_IF_ERROR(weights_.memory->place(read, weights_.threads).status());
    }
    std::vector<DeltaPieces::Memory> found(blocks_.size());
    DRIFTLESS_RETURN_IF_ERROR(parallel_for(blocks_.size(), weights_.threads,
                                           [&](std::size_t block, unsigned worker) -> Status {
                                             collect(block, scratch_[worker], found[block]);
                                             return {};
                                           }));
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].offsets.empty()) continue;
      DeltaPiece piece = blocks_[i];
      piece.count = static_cast<std::uint32_t>(found[i].offsets.size());
      found_.units += piece.count;
      found_.pieces.push_back(piece);
      found_.memory.push_back(std::move(found[i]));
    }
    blocks_.clear();
    waiting_ = 0;
    return {};
  }

  void cut() {
    parts_.clear();
    at_.clear();
    first_part_.clear();
    std::size_t bytes = 0;
    for (const DeltaPiece& block : blocks_) {
      const MappedWeights::Tensor& tensor = weights_.tensors[block.tensor];
      first_part_.push_back(parts_.size());
      for (std::uint32_t m = tensor.first_map; m < tensor.first_map + tensor.maps; ++m) {
        const ChangePart part = part_of(block, weights_.maps[m]);
        if (part.count == 0) continue;
        parts_.push_back(part);
        at_.push_back(bytes);
        if (!in_place(part)) bytes += (std::size_t{part.count} * part.map->unit_bytes + 7) / 8 * 8;
      }
    }
    first_part_.push_back(parts_.size());
    old_.resize(bytes);
    expected_.resize(bytes);
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].old_values = old_.data() + at_[i];
  }

  // Collects the units of a block that differ in any map.
  void collect(std::size_t block, Scratch& scratch, DeltaPieces::Memory& found) const {
    for (std::size_t i = first_part_[block]; i < first_part_[block + 1]; ++i) {
      const ChangePart& part = parts_[i];
      const bool there = in_place(part);
      const std::uint32_t count = host_kernels().diff(
          there ? part.map->at(part.piece->origin + part.begin) : part.old_values,
          there ? part.values() : expected_.data() + at_[i], part.count, part.map->unit_bytes,
          scratch.offsets.data(), scratch.values.data(), nullptr);
      for (std::uint32_t k = 0; k < count; ++k) scratch.offsets[k] += part.begin;
      scratch.merged.clear();
      std::set_union(found.offsets.begin(), found.offsets.end(), scratch.offsets.begin(),
                     scratch.offsets.begin() + count, std::back_inserter(scratch.merged));
      found.offsets.assign(scratch.merged.begin(), scratch.merged.end());
    }
    const unsigned width = unit_bytes(weights_.layout[blocks_[block].tensor].dtype);
    found.values.resize(found.offsets.size() * width);
    host_kernels().gather(blocks_[block].values, width, found.offsets.data(), found.offsets.size(),
                          found.values.data());
    found.old_values.resize(found.offsets.size() * width);
  }

  void point() {
    for (std::size_t i = 0; i < found_.pieces.size(); ++i) {
      DeltaPieces::Memory& found = found_.memory[i];
      found_.pieces[i].offsets = found.offsets.data();
      found_.pieces[i].values = found.values.data();
      found_.pieces[i].old_values = found.old_values.data();
    }
  }

  const MappedWeights& weights_;
  std::vector<Scratch> scratch_;    // per thread
  std::uint64_t most_ = 0;          // limit of differing units
  std::vector<DeltaPiece> blocks_;  // all units of a range each; they wait to be compared
  std::uint64_t waiting_ = 0;       // units of blocks_
  std::vector<ChangePart> parts_;
  // at_: the place of each part in old_; first_part_: the first part of each block.
  std::vector<std::size_t> at_, first_part_;
  std::vector<std::byte> old_, expected_;
  std::vector<std::uint32_t> differing_;  // found by the memory
  DeltaPieces found_;
};

constexpr std::uint64_t kCopyUnits = std::uint64_t{1} << 20;     // per task
constexpr std::uint64_t kStretchBytes = std::uint64_t{4} << 20;  // per task

// Maps the units that `map` writes within [begin, end) of its parameter onto themselves.
Result<WeightMap> onto_itself(const WeightMap& map, std::uint64_t begin, std::uint64_t end) {
  StridedView view{map.map.target_offset - begin, {}, {}};
  for (std::uint32_t d = 0; d < map.map.dims; ++d) {
    view.shape.push_back(map.map.dim[d].size);
    view.strides.push_back(map.map.dim[d].target_stride);
  }
  WeightMap identity = map;
  identity.cast = ValueCast::kNone;
  identity.data = map.data + begin * map.unit_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(identity.map, StridedMap::make(view, end - begin, view, end - begin));
  return identity;
}

// The maps that meet [begin, end): of the many maps of a stack of experts, a block meets a few.
std::vector<const WeightMap*> maps_in(const std::vector<WeightMap>& maps, std::uint64_t begin,
                                      std::uint64_t end) {
  std::vector<const WeightMap*> found;
  for (const WeightMap& each : maps) {
    if (each.map.source_offset < end && begin < each.map.source_end) found.push_back(&each);
  }
  return found;
}

// A copy of the memory that all maps point into, in host memory, as large as the weights.
class WeightCopy {
 public:
  // Reads the weights into the copy.
  Status take(const MappedWeights& weights) {
    for (const WeightMap& map : weights.maps) {
      Extent& extent = extents_[{map.data, map.unit_bytes}];
      extent.begin = std::min(extent.begin, map.map.target_offset);
      extent.end = std::max(extent.end, map.map.target_end);
    }
    for (const WeightMap& map : weights.maps) {
      Extent& extent = extents_[{map.data, map.unit_bytes}];
      DRIFTLESS_ASSIGN_OR_RETURN(WeightMap identity, onto_itself(map, extent.begin, extent.end));
      extent.maps.push_back(std::move(identity));
      if (extent.bytes != nullptr) continue;
      // Not zeroed first: touching new memory for the first time takes longer than copying into it,
      // so the threads that copy do it.
      extent.bytes =
          std::make_unique_for_overwrite<std::byte[]>((extent.end - extent.begin) * map.unit_bytes);
    }
    return each_block(weights,
                      [&](auto maps, std::uint64_t at, std::uint64_t count, std::byte* bytes) {
                        return weights.memory->read(maps, at, count, bytes);
                      });
  }

  Status put_back(const MappedWeights& weights) {
    DRIFTLESS_RETURN_IF_ERROR(each_block(
        weights, [&](auto maps, std::uint64_t at, std::uint64_t count, const std::byte* bytes) {
          return weights.memory->write(maps, at, count, bytes, MemoryKind::kHost);
        }));
    return weights.memory->finish();
  }

 private:
  struct Extent {
    std::uint64_t begin = ~std::uint64_t{0}, end = 0;
    std::vector<WeightMap> maps;         // onto themselves: units between maps are not touched
    std::unique_ptr<std::byte[]> bytes;  // [begin, end); undefined between maps
  };
  template <typename Use>
  Status each_block(const MappedWeights& weights, const Use& use) {
    const unsigned threads = weights.memory->threads(weights.threads);
    for (auto& [place, extent] : extents_) {
      const std::uint64_t units = extent.end - extent.begin;
      const unsigned width = place.second;
      DRIFTLESS_RETURN_IF_ERROR(parallel_for(
          (units + kCopyUnits - 1) / kCopyUnits, threads, [&](std::size_t i, unsigned) -> Status {
            const std::uint64_t at = i * kCopyUnits;
            const std::uint64_t count = std::min(kCopyUnits, units - at);
            return use(maps_in(extent.maps, at, at + count), at, count,
                       extent.bytes.get() + at * width);
          }));
    }
    return {};
  }

  std::map<std::pair<std::byte*, unsigned>, Extent> extents_;
};

class DenseChange final : public PlacedChanges {
 public:
  DenseChange(std::shared_ptr<const MappedWeights> weights,
              std::shared_ptr<const TensorChanges> changes)
      : weights_(std::move(weights)), changes_(std::move(changes)) {
    // A GPU copies contiguous bytes in one operation of any size.
    const bool copied = weights_->contiguous && weights_->memory->kind() == MemoryKind::kDevice;
    const std::uint64_t most = copied ? std::numeric_limits<std::uint64_t>::max() : kStretchBytes;
    const VersionSource& version = changes_->versions().front();
    for (const TensorChange& change : version.changes()) {
      if (!weights_->maps_any(change.tensor)) continue;
      for (DensePiece rest : version.dense(change)) {
        const unsigned unit = unit_bytes(weights_->layout[change.tensor].dtype);
        const std::uint64_t whole = std::max<std::uint64_t>(most / unit, 1) * unit;
        while (!rest.bytes.empty()) {
          const std::uint64_t size = std::min<std::uint64_t>(whole, rest.bytes.size());
          stretches_.push_back({change.tensor, rest});
          stretches_.back().piece.bytes = rest.bytes.first(size);
          rest.bytes = rest.bytes.subspan(size);
          rest.byte_offset += size;
          rest.first_unit += size / unit;
        }
      }
    }
  }

  Status keep() {
    has_kept_ = true;
    return kept_.take(*weights_);
  }

  Result<std::optional<PartFault>> write() override {
    const unsigned threads = weights_->memory->threads(weights_->threads);
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(stretches_.size(), threads, [&](std::size_t i, unsigned) -> Status {
          const auto& [tensor, piece] = stretches_[i];
          const unsigned unit = unit_bytes(weights_->layout[tensor].dtype);
          const std::vector<const WeightMap*> maps = weights_->maps_of(tensor, false);
          return piece.each_stretch(unit, [&](const DensePiece& stretch) {
            return weights_->memory->write(maps, stretch.byte_offset / unit,
                                           stretch.bytes.size() / unit, stretch.bytes.data(),
                                           stretch.memory);
          });
        }));
    DRIFTLESS_RETURN_IF_ERROR(weights_->memory->finish());
    return std::optional<PartFault>();
  }

  Status take_back() override {
    if (has_kept_) return kept_.put_back(*weights_);
    return error(StatusCode::kUnsupported, "there was no version before it");
  }

 private:
  struct Stretch {
    std::uint32_t tensor = 0;
    DensePiece piece;
  };
  std::shared_ptr<const MappedWeights> weights_;
  std::shared_ptr<const TensorChanges> changes_;
  std::vector<Stretch> stretches_;
  WeightCopy kept_;
  bool has_kept_ = false;
};

}  // namespace

Result<std::optional<DeltaPieces>> find_difference(const MappedWeights& weights,
                                                   const VersionSource& version) {
  return DifferenceFinder(weights).find(version);
}

Result<std::unique_ptr<PlacedChanges>> make_dense_change(
    std::shared_ptr<const MappedWeights> weights, std::shared_ptr<const TensorChanges> changes,
    bool keep) {
  auto change = std::make_unique<DenseChange>(std::move(weights), std::move(changes));
  if (keep) DRIFTLESS_RETURN_IF_ERROR(change->keep());
  return std::unique_ptr<PlacedChanges>(std::move(change));
}

}  // namespace driftless
