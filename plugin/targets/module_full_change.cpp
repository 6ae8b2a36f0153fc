// stage_module_full(): a whole version, proven; then what differs, or, where that is much or the
// module holds no version, all of it is written through the maps. And the digest of a module's
// parameters, read through them.
#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "kernels/host_kernels.h"
#include "plugin/targets/dense_stretches.h"
#include "plugin/targets/fetched_version.h"
#include "plugin/targets/module_change.h"
#include "plugin/targets/module_difference.h"

namespace driftless {
namespace {

constexpr std::uint32_t kBlockUnits = 1U << 20;  // summed at a time

class WholeTensors final : public ModuleNews {
 public:
  WholeTensors(std::shared_ptr<const ModuleWeights> weights, VersionSource source)
      : weights_(std::move(weights)), source_(std::move(source)) {
    for (std::uint32_t tensor = 0; tensor < weights_->tensors.size(); ++tensor) {
      if (weights_->tensors[tensor].external) external_.push_back(tensor);
    }
  }
  [[nodiscard]] const VersionSource& source() const { return source_; }
  void only(ModuleDifference difference) { difference_ = std::move(difference); }

  [[nodiscard]] std::span<const DeltaPiece> all_pieces() const override {
    return difference_.pieces();
  }
  [[nodiscard]] std::uint64_t units() const override { return difference_.units(); }
  [[nodiscard]] std::span<const std::uint32_t> tensors() const override { return external_; }
  [[nodiscard]] bool whole() const override { return true; }
  [[nodiscard]] std::uint64_t changed_units(std::uint32_t tensor) const override {
    return weights_->layout[tensor].units();
  }
  [[nodiscard]] std::optional<std::uint64_t> absent_bits(std::uint32_t) const override {
    return std::nullopt;
  }
  [[nodiscard]] std::span<const DeltaPiece> pieces(std::uint32_t) const override { return {}; }
  void write(std::uint32_t tensor, std::byte* data, std::optional<std::uint64_t>) const override {
    const TensorChange* const change = source_.find(tensor);
    if (change == nullptr) return;  // a tensor without units
    for (const DensePiece& piece : source_.dense(*change)) {
      std::memcpy(data + piece.byte_offset, piece.bytes.data(), piece.bytes.size());
    }
  }

 private:
  std::shared_ptr<const ModuleWeights> weights_;
  VersionSource source_;
  std::vector<std::uint32_t> external_;
  ModuleDifference difference_;  // for the maps
};

// What all maps lead to, as it lies there: a copy in host memory, as large as the parameters.
class ParameterCopy {
 public:
  // Reads them.
  Status take(const ModuleWeights& weights) {
    for (const ModuleMap& map : weights.maps) {
      if (map.map.units() == 0) continue;
      Extent& extent = extents_[{map.data, map.unit_bytes}];
      extent.begin = std::min(extent.begin, map.map.target_offset);
      extent.end = std::max(extent.end, map.map.target_end);
    }
    for (const ModuleMap& map : weights.maps) {
      if (map.map.units() == 0) continue;
      Extent& extent = extents_[{map.data, map.unit_bytes}];
      DRIFTLESS_ASSIGN_OR_RETURN(ModuleMap own, onto_itself(map, extent.begin, extent.end));
      extent.maps.push_back(std::move(own));
      extent.bytes.resize((extent.end - extent.begin) * map.unit_bytes);
    }
    return each_block(weights,
                      [&](auto maps, std::uint64_t at, std::uint64_t count, std::byte* bytes) {
                        return weights.memory->read(maps, at, count, bytes);
                      });
  }
  Status put_back(const ModuleWeights& weights) {
    DRIFTLESS_RETURN_IF_ERROR(each_block(
        weights, [&](auto maps, std::uint64_t at, std::uint64_t count, const std::byte* bytes) {
          return weights.memory->write(maps, at, count, bytes);
        }));
    return weights.memory->settle();
  }

 private:
  struct Extent {
    std::uint64_t begin = ~std::uint64_t{0}, end = 0;
    std::vector<ModuleMap> maps;   // onto themselves: what lies between them is not touched
    std::vector<std::byte> bytes;  // [begin, end)
  };
  // From places in an extent to the same in the parameter.
  static Result<ModuleMap> onto_itself(const ModuleMap& map, std::uint64_t begin,
                                       std::uint64_t end) {
    StridedView view{map.map.target_offset - begin, {}, {}};
    for (std::uint32_t d = 0; d < map.map.dims; ++d) {
      view.shape.push_back(map.map.dim[d].size);
      view.strides.push_back(map.map.dim[d].target_stride);
    }
    ModuleMap own = map;
    own.cast = ValueCast::kNone;
    own.data = map.data + begin * map.unit_bytes;
    DRIFTLESS_ASSIGN_OR_RETURN(own.map, StridedMap::make(view, end - begin, view, end - begin));
    return own;
  }
  // A stack of experts has many, of which a block meets few.
  static std::vector<const ModuleMap*> maps_in(const Extent& extent, std::uint64_t begin,
                                               std::uint64_t end) {
    std::vector<const ModuleMap*> found;
    for (const ModuleMap& map : extent.maps) {
      if (map.map.source_offset < end && begin < map.map.source_end) found.push_back(&map);
    }
    return found;
  }
  template <typename Use>
  Status each_block(const ModuleWeights& weights, const Use& use) {
    for (auto& [place, extent] : extents_) {
      const std::uint64_t units = extent.end - extent.begin;
      const std::uint64_t blocks = (units + kBlockUnits - 1) / kBlockUnits;
      DRIFTLESS_RETURN_IF_ERROR(parallel_for(
          blocks, weights.memory->threads(weights.threads), [&](std::size_t i, unsigned) {
            const std::uint64_t at = i * kBlockUnits;
            const std::uint64_t count = std::min<std::uint64_t>(kBlockUnits, units - at);
            const std::vector<const ModuleMap*> maps = maps_in(extent, at, at + count);
            return use(std::span<const ModuleMap* const>(maps), at, count,
                       extent.bytes.data() + at * place.second);
          }));
    }
    return {};
  }
  std::map<std::pair<std::byte*, unsigned>, Extent> extents_;
};

// All of it is written. Where the module held a version, that is kept to go back to.
class ModuleFullChange final : public StagedChange {
 public:
  ModuleFullChange(std::shared_ptr<ModuleWeights> weights, VersionSource source)
      : weights_(weights),
        news_(std::make_shared<WholeTensors>(weights, std::move(source))),
        before_(weights->state),
        after_{manifest().id, manifest().digest, true, before_.partial},
        external_(weights->writer) {}

  Status prepare() {
    for (const TensorChange& change : news_->source().changes()) {
      const std::string& why = weights_->tensors[change.tensor].why_refused;
      if (!why.empty()) {
        return error(StatusCode::kUnsupported, "tensor '", weights_->layout[change.tensor].name,
                     "' cannot be written into this module: ", why,
                     ". Nothing was changed; reload the engine");
      }
    }
    stretches_ = stretches_of(news_->source());
    const DenseSums sums = sum_stretches(
        stretches_, weights_->threads,
        [&](std::uint32_t tensor) -> const DigestTensorKey& {
          return weights_->tensors[tensor].key;
        },
        [&](std::uint32_t tensor) { return weights_->tensors[tensor].complete; });
    if (weights_->summed) after_.digest = sums.held;
    return check_digest(sums, manifest());
  }

  // To be written whole.
  Status keep_what_is_there() {
    if (before_.valid) DRIFTLESS_RETURN_IF_ERROR(kept_.take(*weights_));
    return external_.stage(news_);
  }

  // What differs from the module, where that is little: it can be taken back.
  Result<bool> find_difference() {
    DRIFTLESS_ASSIGN_OR_RETURN(std::optional<ModuleDifference> found,
                               ModuleDifference::find(*weights_, stretches_));
    if (!found) return false;
    news_->only(std::move(*found));
    return true;
  }
  [[nodiscard]] std::shared_ptr<ModuleNews> news() const { return news_; }
  [[nodiscard]] const TargetState& after() const { return after_; }

  Result<CommitReport> commit() override {
    DRIFTLESS_RETURN_IF_ERROR(check_staged_for(committed_, before_, weights_->state, path()));
    Stopwatch watch;
    DRIFTLESS_RETURN_IF_ERROR(external_.commit().with_context(path()));
    weights_->state.valid = false;  // until all of it is there
    if (const Status status = write(); !status.ok()) {
      if (!before_.valid) return status;
      DRIFTLESS_RETURN_IF_ERROR(go_back());
      return status.with_context("all was undone");
    }
    weights_->state = after_;
    committed_ = true;
    return CommitReport{after_.id.version, after_.digest, manifest().changed_units, watch.lap_ms()};
  }

  Status undo() override {
    if (!committed_ || weights_->state != after_) {
      return error(StatusCode::kInvalidArgument, path(),
                   ": only the last committed change can be taken back, and only once");
    }
    if (!before_.valid) {
      return error(StatusCode::kUnsupported, path(),
                   ": the module held no version before it; the weights stay at it");
    }
    weights_->state.valid = false;
    return go_back();
  }

 private:
  [[nodiscard]] const Manifest& manifest() const { return *news_->source().version().manifest; }
  [[nodiscard]] const std::string& path() const { return news_->source().version().path; }

  Status write() {
    const unsigned threads = weights_->memory->threads(weights_->threads);
    DRIFTLESS_RETURN_IF_ERROR(each_stretch(threads, [&](const DenseStretch& stretch, unsigned) {
      const unsigned unit = unit_bytes(weights_->layout[stretch.tensor].dtype);
      return weights_->memory->write(weights_->maps_of(stretch.tensor, false),
                                     stretch.byte_offset / unit, stretch.bytes.size() / unit,
                                     stretch.bytes.data());
    }));
    return weights_->memory->settle();
  }
  // The state is not valid until all is back.
  Status go_back() {
    Status status = kept_.put_back(*weights_);
    if (status.ok()) status = external_.undo();
    if (!status.ok()) {
      return status.with_context(
          concat(path(), ": could not be taken back, the module holds no version; reload it"));
    }
    weights_->state = before_;
    return {};
  }

  template <typename Use>
  Status each_stretch(unsigned threads, const Use& use) const {
    return parallel_for(stretches_.size(), threads,
                        [&](std::size_t i, unsigned worker) { return use(stretches_[i], worker); });
  }

  std::shared_ptr<ModuleWeights> weights_;
  std::shared_ptr<WholeTensors> news_;
  TargetState before_, after_;
  ExternalCommit external_;
  std::vector<DenseStretch> stretches_;
  ParameterCopy kept_;
  bool committed_ = false;
};

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_module_full(
    const std::shared_ptr<ModuleWeights>& weights, VersionSource source) {
  const std::string path = source.version().path;
  auto change = std::make_unique<ModuleFullChange>(weights, std::move(source));
  DRIFTLESS_RETURN_IF_ERROR(change->prepare().with_context(path));
  if (weights->state.valid) {
    Result<bool> found = change->find_difference();
    if (!found.ok()) return found.status().with_context(path);
    // Proven already: what it ends with was compared unit by unit, whatever was there.
    if (*found) return place_module_news(weights, path, change->after(), change->news(), false);
  }
  DRIFTLESS_RETURN_IF_ERROR(change->keep_what_is_there().with_context(path));
  return std::unique_ptr<StagedChange>(std::move(change));
}

Result<Digest> digest_of(const ModuleWeights& weights) {
  struct Block {
    std::uint32_t tensor;
    std::uint64_t origin;
  };
  std::vector<Block> blocks;
  for (std::uint32_t tensor = 0; tensor < weights.layout.size(); ++tensor) {
    if (!weights.tensors[tensor].complete) continue;
    const std::uint64_t units = weights.layout[tensor].units();
    for (std::uint64_t at = 0; at < units; at += kBlockUnits) blocks.push_back({tensor, at});
  }
  const unsigned threads = weights.memory->threads(std::max(1U, weights.threads));
  std::vector<Digest> sums(threads);
  std::vector<std::vector<std::byte>> rooms(threads,
                                            std::vector<std::byte>(std::size_t{kBlockUnits} * 8));
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(blocks.size(), threads, [&](std::size_t i, unsigned worker) -> Status {
        const auto& [tensor, origin] = blocks[i];
        const unsigned unit = unit_bytes(weights.layout[tensor].dtype);
        const std::uint64_t count =
            std::min<std::uint64_t>(kBlockUnits, weights.layout[tensor].units() - origin);
        std::byte* const room = rooms[worker].data();
        DRIFTLESS_RETURN_IF_ERROR(
            weights.memory->read(weights.maps_of(tensor, true), origin, count, room));
        sums[worker] +=
            host_kernels().digest(weights.tensors[tensor].key, origin * unit, {room, count * unit});
        return {};
      }));
  for (unsigned i = 1; i < threads; ++i) sums[0] += sums[i];
  return sums[0];
}

}  // namespace driftless
