// place_module_news(): where each change of a module goes; commit and undo.
#include <algorithm>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "kernels/host_kernels.h"
#include "plugin/targets/fetched_version.h"
#include "plugin/targets/module_change.h"

namespace driftless {
namespace {

// Below this many changed units starting threads takes longer than the work.
constexpr std::uint64_t kPlacedPerThread = 32768;

class PlacedNews final : public StagedChange {
 public:
  PlacedNews(std::shared_ptr<ModuleWeights> weights, std::string source, const TargetState& after,
             std::shared_ptr<ModuleNews> news)
      : weights_(std::move(weights)),
        source_(std::move(source)),
        before_(weights_->state),
        after_(after),
        external_(weights_->writer),
        news_(std::move(news)) {}

  Status prepare(bool prove_digest) {
    cut();
    DRIFTLESS_ASSIGN_OR_RETURN(placed_, weights_->memory->place(parts_, weights_->threads));
    if (prove_digest) DRIFTLESS_RETURN_IF_ERROR(prove());
    return external_.stage(news_);
  }

  Result<CommitReport> commit() override {
    DRIFTLESS_RETURN_IF_ERROR(check_staged_for(used_, before_, weights_->state, source_));
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
    return static_cast<unsigned>(std::clamp<std::uint64_t>(news_->units() / kPlacedPerThread, 1,
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
  std::shared_ptr<ModuleNews> news_;
  std::vector<ModulePart> parts_;
  std::vector<std::byte> old_values_;  // of parts whose map is not counted
  std::unique_ptr<PlacedParts> placed_;
  bool used_ = false;       // commit() was called
  bool committed_ = false;  // and is in effect
};

}  // namespace

ModulePart part_of(const DeltaPiece& piece, const ModuleMap& map) {
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

Result<std::unique_ptr<StagedChange>> place_module_news(std::shared_ptr<ModuleWeights> weights,
                                                        const std::string& source,
                                                        const TargetState& after,
                                                        std::shared_ptr<ModuleNews> news,
                                                        bool prove) {
  auto change = std::make_unique<PlacedNews>(std::move(weights), source, after, std::move(news));
  DRIFTLESS_RETURN_IF_ERROR(change->prepare(prove).with_context(source));
  return std::unique_ptr<StagedChange>(std::move(change));
}

}  // namespace driftless
