// SPDX-License-Identifier: Apache-2.0
// make_dense_change().
#include <algorithm>
#include <limits>

#include "core/parallel.h"
#include "plugin/targets/tensor_changes.h"

namespace driftless {
namespace {

constexpr std::uint64_t kCopyUnits = std::uint64_t{1} << 20;     // of one task
constexpr std::uint64_t kStretchBytes = std::uint64_t{4} << 20;  // of one task

// From places in [begin, end) of a parameter to the same in the parameter.
Result<WeightMap> onto_itself(const WeightMap& map, std::uint64_t begin, std::uint64_t end) {
  StridedView view{map.map.target_offset - begin, {}, {}};
  for (std::uint32_t d = 0; d < map.map.dims; ++d) {
    view.shape.push_back(map.map.dim[d].size);
    view.strides.push_back(map.map.dim[d].target_stride);
  }
  WeightMap own = map;
  own.cast = ValueCast::kNone;
  own.data = map.data + begin * map.unit_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(own.map, StridedMap::make(view, end - begin, view, end - begin));
  return own;
}

// A stack of experts has many maps, of which a block meets few.
std::vector<const WeightMap*> maps_in(const std::vector<WeightMap>& maps, std::uint64_t begin,
                                      std::uint64_t end) {
  std::vector<const WeightMap*> found;
  for (const WeightMap& each : maps) {
    if (each.map.source_offset < end && begin < each.map.source_end) found.push_back(&each);
  }
  return found;
}

// What all maps lead to, as it lies there: a copy in host memory, as large as the weights.
class WeightCopy {
 public:
  // Reads them.
  Status take(const MappedWeights& weights) {
    for (const WeightMap& map : weights.maps) {
      Extent& extent = extents_[{map.data, map.unit_bytes}];
      extent.begin = std::min(extent.begin, map.map.target_offset);
      extent.end = std::max(extent.end, map.map.target_end);
    }
    for (const WeightMap& map : weights.maps) {
      Extent& extent = extents_[{map.data, map.unit_bytes}];
      DRIFTLESS_ASSIGN_OR_RETURN(WeightMap own, onto_itself(map, extent.begin, extent.end));
      extent.maps.push_back(std::move(own));
      extent.bytes.resize((extent.end - extent.begin) * map.unit_bytes);
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
    std::vector<WeightMap> maps;   // onto themselves: what lies between them is not touched
    std::vector<std::byte> bytes;  // [begin, end)
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
                       extent.bytes.data() + at * width);
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
    // A GPU copies contiguous bytes in one go, whatever their number.
    const bool copied = weights_->contiguous && weights_->memory->kind() == MemoryKind::kDevice;
    const std::uint64_t most = copied ? std::numeric_limits<std::uint64_t>::max() : kStretchBytes;
    const VersionSource& version = changes_->versions().front();
    for (const TensorChange& change : version.changes()) {
      if (!weights_->maps_any(change.tensor)) continue;
      for (DensePiece rest : version.dense(change)) {
        while (!rest.bytes.empty()) {
          const std::uint64_t size = std::min<std::uint64_t>(most, rest.bytes.size());
          stretches_.push_back(
              {change.tensor, {rest.byte_offset, rest.bytes.first(size), rest.memory}});
          rest.bytes = rest.bytes.subspan(size);
          rest.byte_offset += size;
        }
      }
    }
  }

  Status keep() {
    has_kept_ = true;
    return kept_.take(*weights_);
  }

  Result<std::optional<std::size_t>> write() override {
    const unsigned threads = weights_->memory->threads(weights_->threads);
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(stretches_.size(), threads, [&](std::size_t i, unsigned) -> Status {
          const auto& [tensor, piece] = stretches_[i];
          const unsigned unit = unit_bytes(weights_->layout[tensor].dtype);
          return weights_->memory->write(weights_->maps_of(tensor, false), piece.byte_offset / unit,
                                         piece.bytes.size() / unit, piece.bytes.data(),
                                         piece.memory);
        }));
    DRIFTLESS_RETURN_IF_ERROR(weights_->memory->finish());
    return std::optional<std::size_t>();
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

Result<std::unique_ptr<PlacedChanges>> make_dense_change(
    std::shared_ptr<const MappedWeights> weights, std::shared_ptr<const TensorChanges> changes,
    bool keep) {
  auto change = std::make_unique<DenseChange>(std::move(weights), std::move(changes));
  if (keep) DRIFTLESS_RETURN_IF_ERROR(change->keep());
  return std::unique_ptr<PlacedChanges>(std::move(change));
}

}  // namespace driftless
