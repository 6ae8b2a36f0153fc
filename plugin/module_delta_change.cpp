// stage_module_deltas(): deltas folded into pieces, and where each goes; commit and undo.
#include <algorithm>
#include <cstring>
#include <map>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/delta_pieces.h"
#include "plugin/module_change.h"
#include "plugin/stopwatch.h"

namespace driftless {
namespace {

// Below this many changed units starting threads takes longer than the work.
constexpr std::uint64_t kUnitsPerThread = 32768;

// What the versions bring, decoded and folded. Shared with the external writer.
class FoldedDeltas final : public TensorNews {
 public:
  FoldedDeltas(std::shared_ptr<const ModuleWeights> weights, std::vector<VersionSource> chain)
      : weights_(std::move(weights)), sources_(std::move(chain)) {}

  Status fold() {
    std::map<std::uint32_t, TensorSteps> by_tensor;
    for (const VersionSource& source : sources_) {
      for (const TensorChange& change : source.changes()) {
        const ModuleWeights::Tensor& tensor = weights_->tensors[change.tensor];
        DRIFTLESS_RETURN_IF_ERROR(check_followed(tensor, change.tensor));
        if (tensor.maps == 0 && !tensor.external) continue;
        TensorSteps& steps = by_tensor[change.tensor];
        steps.tensor = change.tensor;
        steps.versions.push_back(source.pieces(change));
      }
    }
    std::vector<TensorSteps> tensors;
    for (auto& [index, steps] : by_tensor) tensors.push_back(std::move(steps));
    DRIFTLESS_ASSIGN_OR_RETURN(fold_,
                               DeltaFold::make(weights_->layout, tensors, weights_->threads));
    for (const DeltaPiece& piece : fold_.pieces()) {
      if (!weights_->tensors[piece.tensor].external) continue;
      if (external_.empty() || external_.back() != piece.tensor) external_.push_back(piece.tensor);
    }
    return {};
  }

  [[nodiscard]] std::span<const DeltaPiece> all_pieces() const { return fold_.pieces(); }
  [[nodiscard]] std::uint64_t units() const { return fold_.units(); }

  [[nodiscard]] std::span<const std::uint32_t> tensors() const override { return external_; }
  [[nodiscard]] bool whole() const override { return false; }
  [[nodiscard]] std::uint64_t changed_units(std::uint32_t tensor) const override {
    std::uint64_t units = 0;
    for (const DeltaPiece& piece : pieces(tensor)) units += piece.count;
    return units;
  }

  [[nodiscard]] std::optional<std::uint64_t> absent_bits(std::uint32_t tensor) const override {
    // Of the low 16 bits (8 of a byte), one pattern that is free makes all above it free, too.
    const unsigned width = unit_bytes(weights_->layout[tensor].dtype);
    std::vector<bool> taken(width == 1 ? 256 : 65536);
    for (const DeltaPiece& piece : pieces(tensor)) {
      for (std::uint32_t k = 0; k < piece.count; ++k) taken[low_bits(piece, k, width)] = true;
    }
    const auto free = std::find(taken.rbegin(), taken.rend(), false);
    if (free == taken.rend()) return std::nullopt;
    return static_cast<std::uint64_t>(taken.rend() - free - 1);
  }

  void write(std::uint32_t tensor, std::byte* data,
             std::optional<std::uint64_t> only) const override {
    const unsigned width = unit_bytes(weights_->layout[tensor].dtype);
    for (const DeltaPiece& piece : pieces(tensor)) {
      std::byte* const units = data + piece.origin * width;
      if (!only) {
        host_kernels().scatter(units, width, piece.offsets, piece.count, piece.values);
        continue;
      }
      for (std::uint32_t k = 0; k < piece.count; ++k) {
        const std::byte* const value = piece.values + std::size_t{k} * width;
        if (std::memcmp(value, &*only, width) != 0) continue;
        std::memcpy(units + std::size_t{piece.offsets[k]} * width, value, width);
      }
    }
  }

  [[nodiscard]] std::span<const DeltaPiece> pieces(std::uint32_t tensor) const override {
    const std::span<const DeltaPiece> all = fold_.pieces();  // ascending by tensor
    const auto below = [](const DeltaPiece& piece, std::uint32_t index) {
      return piece.tensor < index;
    };
    const auto first = std::lower_bound(all.begin(), all.end(), tensor, below);
    const auto last = std::lower_bound(first, all.end(), tensor + 1, below);
    return {first, last};
  }

 private:
  Status check_followed(const ModuleWeights::Tensor& tensor, std::uint32_t index) const {
    if (tensor.why_refused.empty()) return {};
    return error(StatusCode::kUnsupported, "tensor '", weights_->layout[index].name,
                 "' changes, but cannot be written into this module: ", tensor.why_refused,
                 ". Nothing was changed; reload the engine");
  }
  [[nodiscard]] static std::size_t low_bits(const DeltaPiece& piece, std::uint32_t k,
                                            unsigned width) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, piece.values + std::size_t{k} * width, std::min(width, 2U));
    return bits;
  }
  std::shared_ptr<const ModuleWeights> weights_;
  std::vector<VersionSource> sources_;
  DeltaFold fold_;
  std::vector<std::uint32_t> external_;
};

class ModuleDeltaChange final : public StagedChange {
 public:
  ModuleDeltaChange(std::shared_ptr<ModuleWeights> weights, std::string source,
                    const TargetState& after)
      : weights_(std::move(weights)),
        source_(std::move(source)),
        before_(weights_->state),
        after_(after),
        external_(weights_->writer) {}

  Status prepare(std::vector<VersionSource> chain) {
    news_ = std::make_shared<FoldedDeltas>(weights_, std::move(chain));
    DRIFTLESS_RETURN_IF_ERROR(news_->fold());
    cut();
    DRIFTLESS_ASSIGN_OR_RETURN(placed_, weights_->memory->place(parts_, weights_->threads));
    if (weights_->summed) DRIFTLESS_RETURN_IF_ERROR(prove());
    return external_.stage(news_);
  }

  Result<CommitReport> commit() override {
    if (used_ || weights_->state != before_) {
      return error(StatusCode::kWrongBase, source_,
                   ": the weights are not those that it was staged for; stage it again");
    }
    used_ = true;
    Stopwatch watch;
    DRIFTLESS_RETURN_IF_ERROR(external_.commit().with_context(source_));
    Result<std::optional<std::size_t>> differs = placed_->write();
    if (!differs.ok()) {
      weights_->state.valid = false;
      return with_external_undone(
          differs.status().with_context(concat(source_, ": the module holds no version now")));
    }
    if (*differs) return with_external_undone(not_the_old(parts_[**differs]));
    weights_->state = after_;
    committed_ = true;
    return CommitReport{after_.id.version, after_.digest, news_->units(), watch.lap_ms()};
  }

  Status undo() override {
    if (!committed_ || weights_->state != after_) {
      return error(StatusCode::kInvalidArgument, source_,
                   ": only the last committed change can be taken back, and only once");
    }
    committed_ = false;
    if (const Status status = placed_->take_back(); !status.ok()) {
      weights_->state.valid = false;
      return status.with_context(concat(source_, ": could not be taken back; reload the module"));
    }
    weights_->state = before_;
    return with_external_undone({});
  }

 private:
  [[nodiscard]] unsigned threads() const {
    return static_cast<unsigned>(std::clamp<std::uint64_t>(news_->units() / kUnitsPerThread, 1,
                                                           std::max(1U, weights_->threads)));
  }

  // Which changes go through which map, and where their old values are kept. Maps that hold the
  // tensor's own units share the piece's room: none has a unit of another.
  void cut() {
    std::uint64_t bytes = 0;
    std::vector<std::uint64_t> room;  // per part: its place in old_values_, or none
    for (const DeltaPiece& piece : news_->all_pieces()) {
      const ModuleWeights::Tensor& tensor = weights_->tensors[piece.tensor];
      for (std::uint32_t m = tensor.first_map; m < tensor.first_map + tensor.maps; ++m) {
        ModulePart part = part_of(piece, weights_->maps[m]);
        if (part.count == 0) continue;
        const unsigned width = part.map->unit_bytes;
        if (weights_->counted[m]) {
          part.old_values = piece.old_values + std::size_t{part.begin} * width;
        }
        room.push_back(bytes);
        if (part.old_values == nullptr) bytes += std::uint64_t{part.count} * width;
        parts_.push_back(part);
      }
    }
    old_values_.resize(bytes);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].old_values == nullptr) parts_[i].old_values = old_values_.data() + room[i];
    }
  }

  static ModulePart part_of(const DeltaPiece& piece, const ModuleMap& map) {
    const auto index_of = [&](std::uint64_t position) {
      if (position <= piece.origin) return std::uint32_t{0};
      const std::uint64_t offset = position - piece.origin;
      return static_cast<std::uint32_t>(
          std::lower_bound(piece.offsets, piece.offsets + piece.count, offset) - piece.offsets);
    };
    ModulePart part;
    part.piece = &piece;
    part.map = &map;
    part.begin = index_of(map.map.source_offset);
    part.count = std::max(part.begin, index_of(map.map.source_end)) - part.begin;
    return part;
  }

  // What is held is so whole, as it is: the old values are all there.
  Status prove() {
    const HostKernels& kernels = host_kernels();
    const std::span<const DeltaPiece> pieces = news_->all_pieces();
    std::vector<Digest> changes(threads());
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(pieces.size(), threads(), [&](std::size_t i, unsigned worker) -> Status {
          const DeltaPiece& piece = pieces[i];
          changes[worker] += kernels.digest_change(
              weights_->tensors[piece.tensor].key, unit_bytes(weights_->layout[piece.tensor].dtype),
              piece.origin, piece.offsets, piece.count, piece.old_values, piece.values);
          return {};
        }));
    Digest reached = before_.digest;
    for (const Digest& change : changes) reached += change;
    if (before_.partial) after_.digest = reached;  // nobody knows it beforehand
    if (reached == after_.digest) return {};
    return error(StatusCode::kMismatch, source_, ": after it the module would have digest ",
                 to_hex(reached), ", expected ", to_hex(after_.digest),
                 ": its weights are not what they were, or the delta is damaged. Nothing was "
                 "changed; send a full version");
  }

  [[nodiscard]] Status not_the_old(const ModulePart& part) const {
    return error(StatusCode::kMismatch, source_, ": parameter '", part.map->parameter,
                 "' (tensor '", weights_->layout[part.piece->tensor].name,
                 "') is not what it was when the change was staged: somebody else writes into the "
                 "weights. All was undone; send a full version");
  }

  Status with_external_undone(Status status) {
    const Status undone = external_.undo();
    if (undone.ok()) return status;
    weights_->state.valid = false;
    return undone.with_context(
        concat(source_, ": could not be taken back, the module holds no version; reload it"));
  }

  std::shared_ptr<ModuleWeights> weights_;
  std::string source_;
  TargetState before_, after_;
  ExternalCommit external_;
  std::shared_ptr<FoldedDeltas> news_;
  std::vector<ModulePart> parts_;
  std::vector<std::byte> old_values_;  // of parts whose map is not counted
  std::unique_ptr<PlacedParts> placed_;
  bool used_ = false;       // commit() was called
  bool committed_ = false;  // and is in effect
};

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_module_deltas(std::shared_ptr<ModuleWeights> weights,
                                                          std::vector<VersionSource> chain) {
  for (const VersionSource& source : chain) {
    if (source.positional()) continue;
    return error(StatusCode::kUnsupported, source.version().path, ": is in '",
                 info(source.version().encoding).name,
                 "', which is for contiguous tensors only, not for strided ones or a module's "
                 "parameters; publish indices, deltas or deltas_zstd");
  }
  const VersionDirectory& last = chain.back().version();
  const std::string source =
      chain.size() == 1 ? last.path : concat(chain.front().version().path, " to ", last.version);
  const TargetState after{last.manifest->id, last.manifest->digest, true, weights->state.partial};
  auto change = std::make_unique<ModuleDeltaChange>(weights, source, after);
  DRIFTLESS_RETURN_IF_ERROR(change->prepare(std::move(chain)).with_context(source));
  return std::unique_ptr<StagedChange>(std::move(change));
}

}  // namespace driftless
