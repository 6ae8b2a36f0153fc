// stage_deltas(): deltas folded into pieces, their old values and their digest; commit and undo.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "kernels/host_kernels.h"
#include "plugin/targets/delta_pieces.h"
#include "plugin/targets/fetched_version.h"
#include "plugin/targets/memory_change.h"
#include "plugin/targets/version_stager.h"

namespace driftless {
namespace {

// Below this many changed units starting threads takes longer than the work.
constexpr std::uint64_t kUnitsPerThread = 32768;
// Units are compared and then written in steps that the translation cache spans even where each
// lies on a small page of its own: else the writing waits for the same pages again.
constexpr std::uint32_t kStepUnits = 256;
constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 40;

class DeltaChange final : public StagedChange {
 public:
  DeltaChange(std::shared_ptr<MemoryWeights> weights, std::string source, const TargetState& after)
      : weights_(std::move(weights)),
        source_(std::move(source)),
        before_(weights_->state),
        after_(after) {}

  // What the fold's values point into.
  std::vector<VersionSource> sources;
  std::vector<std::vector<std::byte>> frame_bytes;
  std::vector<Frame> frames;
  DeltaFold fold;

  // Keeps the old values and proves the digest; the weights are read. `known`: it is, of the
  // tensors that are held, too.
  Status prepare(bool known) {
    const HostKernels& kernels = host_kernels();
    std::vector<Digest> changes(threads());
    DRIFTLESS_RETURN_IF_ERROR(each_piece([&](const DeltaPiece& piece, unsigned worker) {
      kernels.gather(units(piece), width(piece), piece.offsets, piece.count, piece.old_values);
      changes[worker] +=
          kernels.digest_change(weights_->keys[piece.tensor], width(piece), piece.origin,
                                piece.offsets, piece.count, piece.old_values, piece.values);
      return true;
    }));
    Digest reached = before_.digest;
    for (const Digest& change : changes) reached += change;
    if (!known) after_.digest = reached;
    written_.assign(fold.pieces().size(), 0);
    scratch_.resize(threads());
    if (reached == after_.digest) return {};
    return error(StatusCode::kMismatch, source_, ": after it the weights would have digest ",
                 to_hex(reached), ", expected ", to_hex(after_.digest),
                 ": they are not what they were, or the delta is damaged. Nothing was changed; "
                 "send a full version");
  }

  Result<CommitReport> commit() override {
    DRIFTLESS_RETURN_IF_ERROR(check_staged_for(used_, before_, weights_->state, source_));
    used_ = true;
    Stopwatch watch;
    if (const Status status = write(); !status.ok()) {
      take_back();
      return status;
    }
    weights_->state = after_;
    committed_ = true;
    return CommitReport{after_.id.version, after_.digest, fold.units(), watch.lap_ms()};
  }

  Status undo() override {
    if (!committed_ || weights_->state != after_) {
      return error(StatusCode::kInvalidArgument, source_,
                   ": only the last committed change can be taken back, and only once");
    }
    take_back();
    weights_->state = before_;
    committed_ = false;
    return {};
  }

 private:
  using Scratch = std::array<std::byte, std::size_t{kStepUnits} * 8>;

  [[nodiscard]] unsigned threads() const {
    return static_cast<unsigned>(std::clamp<std::uint64_t>(fold.units() / kUnitsPerThread, 1,
                                                           std::max(1U, weights_->threads)));
  }
  [[nodiscard]] unsigned width(const DeltaPiece& piece) const {
    return unit_bytes(weights_->layout[piece.tensor].dtype);
  }
  [[nodiscard]] std::byte* units(const DeltaPiece& piece) const {
    return weights_->data[piece.tensor] + piece.origin * width(piece);
  }

  // use(piece, worker) for every piece, until one says false: kMismatch naming its tensor.
  template <typename Use>
  Status each_piece(const Use& use) const {
    const std::span<const DeltaPiece> pieces = fold.pieces();
    return parallel_for(pieces.size(), threads(), [&](std::size_t i, unsigned worker) -> Status {
      if (use(pieces[i], worker)) return {};
      return error(StatusCode::kMismatch, source_, ": tensor '",
                   weights_->layout[pieces[i].tensor].name,
                   "' is not what it was when the change was staged: somebody else writes into the "
                   "weights. All was undone; send a full version");
    });
  }

  Status write() {
    const DeltaPiece* const first = fold.pieces().data();
    return each_piece([&](const DeltaPiece& piece, unsigned worker) {
      std::uint32_t& written = written_[static_cast<std::size_t>(&piece - first)];
      while (written < piece.count) {
        const std::uint32_t count = std::min(kStepUnits, piece.count - written);
        if (!write_step(piece, written, count, scratch_[worker])) return false;
        written += count;
      }
      return true;
    });
  }

  // Units [at, at + count) of the piece; false, and nothing written, where they are not the old.
  bool write_step(const DeltaPiece& piece, std::uint32_t at, std::uint32_t count,
                  Scratch& scratch) const {
    const HostKernels& kernels = host_kernels();
    const std::size_t width_bytes = width(piece);
    kernels.gather(units(piece), width(piece), piece.offsets + at, count, scratch.data());
    const std::byte* const old_values = piece.old_values + at * width_bytes;
    if (std::memcmp(scratch.data(), old_values, count * width_bytes) != 0) return false;
    kernels.scatter(units(piece), width(piece), piece.offsets + at, count,
                    piece.values + at * width_bytes);
    return true;
  }

  // On this thread alone: it must not be able to fail.
  void take_back() {
    const std::span<const DeltaPiece> pieces = fold.pieces();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const DeltaPiece& piece = pieces[i];
      host_kernels().scatter(units(piece), width(piece), piece.offsets, written_[i],
                             piece.old_values);
      written_[i] = 0;
    }
  }

  std::shared_ptr<MemoryWeights> weights_;
  std::string source_;
  TargetState before_, after_;
  std::vector<std::uint32_t> written_;  // per piece: its first units that are
  std::vector<Scratch> scratch_;        // per thread
  bool used_ = false;                   // commit() was called
  bool committed_ = false;              // and is in effect
};

// The versions as they are, of the tensors that are held.
Status fold_versions(const MemoryWeights& weights, DeltaChange& change) {
  std::map<std::uint32_t, TensorSteps> by_tensor;
  for (const VersionSource& source : change.sources) {
    for (const TensorChange& tensor : source.changes()) {
      if (!weights.holds(tensor.tensor)) continue;
      TensorSteps& steps = by_tensor[tensor.tensor];
      steps.tensor = tensor.tensor;
      steps.versions.push_back(source.pieces(tensor));
    }
  }
  std::vector<TensorSteps> tensors;
  for (auto& [index, steps] : by_tensor) tensors.push_back(std::move(steps));
  DRIFTLESS_ASSIGN_OR_RETURN(change.fold,
                             DeltaFold::make(weights.layout, tensors, weights.threads));
  return {};
}

// Other encodings: their effect on the weights as they are. False where that takes more than `most`
// bytes: then nothing is folded.
Result<bool> fold_effect(const MemoryWeights& weights, std::span<const VersionSource> sources,
                         std::uint64_t most, DeltaChange& change) {
  WeightView view;
  view.name = "memory";
  view.layout = &weights.layout;
  view.data = [&weights](std::size_t tensor) { return weights.data[tensor]; };
  StageOptions options;
  options.threads = weights.threads;
  std::mutex mutex;
  std::uint64_t bytes = 0;
  const auto keep = [&](std::span<const std::byte> frame) -> Status {
    const std::scoped_lock lock(mutex);
    bytes += frame.size();
    if (bytes > most) return error(StatusCode::kUnsupported, "too much");
    change.frame_bytes.emplace_back(frame.begin(), frame.end());
    return {};
  };
  const Status staged = stage_version(view, sources, options, keep).status();
  if (bytes > most) return false;  // stopped on purpose
  DRIFTLESS_RETURN_IF_ERROR(staged);
  std::map<std::uint32_t, std::vector<BucketPiece>> by_tensor;
  change.frames.reserve(change.frame_bytes.size());  // the buckets point into the frames
  for (const std::vector<std::byte>& each : change.frame_bytes) {
    DRIFTLESS_ASSIGN_OR_RETURN(Frame frame, Frame::decode(each, weights.layout, kMaxFrameBytes));
    change.frames.push_back(std::move(frame));
    const BucketView bucket = change.frames.back().bucket();
    for (const BucketEntry& entry : bucket.entries) {
      by_tensor[entry.tensor].push_back({bucket, entry});
    }
  }
  std::vector<TensorSteps> tensors;
  for (const auto& [tensor, pieces] : by_tensor) tensors.push_back({tensor, {pieces}});
  DRIFTLESS_ASSIGN_OR_RETURN(change.fold,
                             DeltaFold::make(weights.layout, tensors, weights.threads));
  return true;
}

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_deltas(std::shared_ptr<MemoryWeights> weights,
                                                   std::vector<VersionSource> chain) {
  const VersionDirectory& last = chain.back().version();
  const std::string source =
      chain.size() == 1 ? last.path : concat(chain.front().version().path, " to ", last.version);
  const TargetState after{last.manifest->id, last.manifest->digest, true, weights->state.partial};
  auto change = std::make_unique<DeltaChange>(weights, source, after);
  const bool positional = std::all_of(chain.begin(), chain.end(),
                                      [](const VersionSource& each) { return each.positional(); });
  if (positional) {
    change->sources = std::move(chain);
    DRIFTLESS_RETURN_IF_ERROR(fold_versions(*weights, *change).with_context(source));
  } else {
    DRIFTLESS_RETURN_IF_ERROR(
        fold_effect(*weights, chain, ~std::uint64_t{0}, *change).status().with_context(source));
  }
  DRIFTLESS_RETURN_IF_ERROR(change->prepare(!weights->state.partial));
  return std::unique_ptr<StagedChange>(std::move(change));
}

Result<std::unique_ptr<StagedChange>> stage_difference(std::shared_ptr<MemoryWeights> weights,
                                                       const VersionSource& source,
                                                       const Digest& held) {
  const VersionDirectory& version = source.version();
  const TargetState after{version.manifest->id, held, true, weights->state.partial};
  auto change = std::make_unique<DeltaChange>(weights, version.path, after);
  const std::uint64_t most = std::max<std::uint64_t>(weights->layout.total_bytes() / 8, 1 << 20);
  const Result<bool> little = fold_effect(*weights, std::span(&source, 1), most, *change);
  if (!little.ok()) return little.status().with_context(version.path);
  if (!*little) return std::unique_ptr<StagedChange>();
  const Status status = change->prepare(true);
  if (status.ok()) return std::unique_ptr<StagedChange>(std::move(change));
  if (status.code() != StatusCode::kMismatch) return status;
  return std::unique_ptr<StagedChange>();  // copying heals what somebody else wrote
}

}  // namespace driftless
