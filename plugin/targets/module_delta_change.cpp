// stage_module_deltas(): deltas folded into pieces.
#include <algorithm>
#include <cstring>
#include <map>

#include "kernels/host_kernels.h"
#include "plugin/targets/delta_pieces.h"
#include "plugin/targets/module_change.h"

namespace driftless {
namespace {

// What the versions bring, decoded and folded. Shared with the external writer.
class FoldedDeltas final : public ModuleNews {
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

  [[nodiscard]] std::span<const DeltaPiece> all_pieces() const override { return fold_.pieces(); }
  [[nodiscard]] std::uint64_t units() const override { return fold_.units(); }

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
  auto news = std::make_shared<FoldedDeltas>(weights, std::move(chain));
  DRIFTLESS_RETURN_IF_ERROR(news->fold().with_context(source));
  const bool prove = weights->summed;
  return place_module_news(std::move(weights), source, after, std::move(news), prove);
}

}  // namespace driftless
