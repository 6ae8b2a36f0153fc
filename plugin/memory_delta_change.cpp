// stage_deltas(): deltas decoded into pieces, and their commit and undo.
#include <algorithm>
#include <mutex>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/memory_change.h"
#include "plugin/stopwatch.h"
#include "plugin/version_stager.h"

namespace driftless {
namespace {

// Below this many changed units starting threads takes longer than the work.
constexpr std::uint64_t kUnitsPerThread = 32768;
constexpr std::uint64_t kMaxFrameBytes = std::uint64_t{1} << 40;

// Changes of one tensor, close to each other.
struct Piece {
  std::uint32_t tensor = 0;
  std::uint32_t count = 0;
  std::uint64_t origin = 0;           // in units
  std::uint64_t offsets = 0;          // index into Layer::offsets
  std::uint64_t undo = 0;             // byte of Layer::undo
  const std::byte* values = nullptr;  // in the parts
  bool written = false;
};

// Changes that touch every unit at most once, so that they may be made in any order: a version's.
struct Layer {
  std::vector<Piece> pieces;
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> undo;  // the values before
};

struct TensorPieces {
  std::uint32_t tensor = 0;
  std::vector<BucketPiece> pieces;
};

// Decodes the pieces of one tensor into the layer's arrays from these places on.
Status decode_tensor(const WeightLayout& layout, const TensorPieces& tensor, std::uint64_t offsets,
                     std::uint64_t undo, Layer& layer, std::vector<Piece>& out) {
  const TensorSpec& spec = layout[tensor.tensor];
  const unsigned width = unit_bytes(spec.dtype);
  std::uint64_t next_position = 0;
  for (const BucketPiece& piece : tensor.pieces) {
    EntryCursor cursor(layout, piece.bucket, piece.entry);
    while (true) {
      DRIFTLESS_ASSIGN_OR_RETURN(const DeltaView delta, cursor.next());
      if (delta.count() == 0) break;
      if (delta.origin + delta.offsets.front() < next_position) {
        return error(StatusCode::kCorrupt, "tensor '", spec.name, "': position ",
                     delta.origin + delta.offsets.front(), " comes after position ",
                     next_position - 1, "; fetch the version again");
      }
      next_position = delta.origin + delta.offsets.back() + 1;
      std::copy(delta.offsets.begin(), delta.offsets.end(), layer.offsets.begin() + offsets);
      out.push_back({tensor.tensor, static_cast<std::uint32_t>(delta.count()), delta.origin,
                     offsets, undo, delta.values, false});
      offsets += delta.count();
      undo += delta.count() * width;
    }
  }
  return {};
}

Result<Layer> decode_layer(const WeightLayout& layout, const std::vector<TensorPieces>& tensors,
                           unsigned threads) {
  std::vector<std::uint64_t> offsets(tensors.size() + 1), undo(tensors.size() + 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::uint64_t count = 0;  // of values that are there, so no sum overflows
    for (const BucketPiece& piece : tensors[i].pieces) count += piece.entry.count();
    offsets[i + 1] = offsets[i] + count;
    undo[i + 1] = undo[i] + count * unit_bytes(layout[tensors[i].tensor].dtype);
  }
  Layer layer;
  layer.offsets.resize(offsets.back());
  layer.undo.resize(undo.back());
  std::vector<std::vector<Piece>> pieces(tensors.size());
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(tensors.size(), threads, [&](std::size_t i, unsigned) {
    return decode_tensor(layout, tensors[i], offsets[i], undo[i], layer, pieces[i]);
  }));
  for (const std::vector<Piece>& some : pieces) {
    layer.pieces.insert(layer.pieces.end(), some.begin(), some.end());
  }
  return layer;
}

class DeltaChange final : public StagedChange {
 public:
  DeltaChange(std::shared_ptr<MemoryWeights> weights, std::string source, const TargetState& after)
      : weights_(std::move(weights)),
        source_(std::move(source)),
        before_(weights_->state),
        after_(after) {}

  // What the pieces' values point into.
  std::vector<VersionSource> sources;
  std::vector<std::vector<std::byte>> frame_bytes;
  std::vector<Frame> frames;
  std::vector<Layer> layers;  // in the order of the versions

  Result<CommitReport> commit() override {
    if (used_ || weights_->state != before_) {
      return error(StatusCode::kWrongBase, source_,
                   ": the weights are not those that it was staged for; stage it again");
    }
    used_ = true;
    Stopwatch watch;
    Digest digest = before_.digest;
    std::uint64_t units = 0;
    for (Layer& layer : layers) {
      if (const Status status = write(layer, digest); !status.ok()) {
        take_back();
        return status.with_context(source_);
      }
      units += layer.offsets.size();
    }
    if (!before_.partial && digest != after_.digest) {
      take_back();
      return error(StatusCode::kMismatch, source_, ": after it the weights would have digest ",
                   to_hex(digest), ", expected ", to_hex(after_.digest),
                   ": they are not what they were, or the delta is damaged. All was undone; send "
                   "a full version");
    }
    after_.digest = digest;
    weights_->state = after_;
    committed_ = true;
    return CommitReport{after_.id.version, digest, units, watch.lap_ms()};
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
  [[nodiscard]] unsigned threads_for(const Layer& layer) const {
    return static_cast<unsigned>(std::clamp<std::uint64_t>(layer.offsets.size() / kUnitsPerThread,
                                                           1, std::max(1U, weights_->threads)));
  }

  Status write(Layer& layer, Digest& digest) {
    const HostKernels& kernels = host_kernels();
    std::vector<Digest> changes(std::max(1U, weights_->threads));
    DRIFTLESS_RETURN_IF_ERROR(parallel_for(
        layer.pieces.size(), threads_for(layer), [&](std::size_t i, unsigned worker) -> Status {
          Piece& piece = layer.pieces[i];
          const unsigned width = unit_bytes(weights_->layout[piece.tensor].dtype);
          std::byte* const units = weights_->data[piece.tensor] + piece.origin * width;
          const std::uint32_t* const offsets = layer.offsets.data() + piece.offsets;
          std::byte* const old_values = layer.undo.data() + piece.undo;
          kernels.gather(units, width, offsets, piece.count, old_values);
          changes[worker] +=
              kernels.digest_change(weights_->keys[piece.tensor], width, piece.origin, offsets,
                                    piece.count, old_values, piece.values);
          kernels.scatter(units, width, offsets, piece.count, piece.values);
          piece.written = true;
          return {};
        }));
    for (const Digest& change : changes) digest += change;
    return {};
  }

  // The last version first. On this thread alone: it must not be able to fail.
  void take_back() {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      for (Piece& piece : layer->pieces) {
        if (!piece.written) continue;
        const unsigned width = unit_bytes(weights_->layout[piece.tensor].dtype);
        host_kernels().scatter(weights_->data[piece.tensor] + piece.origin * width, width,
                               layer->offsets.data() + piece.offsets, piece.count,
                               layer->undo.data() + piece.undo);
        piece.written = false;
      }
    }
  }

  std::shared_ptr<MemoryWeights> weights_;
  std::string source_;
  TargetState before_, after_;
  bool used_ = false;       // commit() was called
  bool committed_ = false;  // and is in effect
};

// The versions as they are: a layer each, of the tensors that are held.
Status add_layers(const MemoryWeights& weights, DeltaChange& change) {
  for (const VersionSource& source : change.sources) {
    std::vector<TensorPieces> tensors;
    for (const TensorChange& tensor : source.changes()) {
      if (!weights.holds(tensor.tensor)) continue;
      const std::span<const BucketPiece> pieces = source.pieces(tensor);
      tensors.push_back({tensor.tensor, {pieces.begin(), pieces.end()}});
    }
    Result<Layer> layer = decode_layer(weights.layout, tensors, weights.threads);
    if (!layer.ok()) return layer.status().with_context(source.version().path);
    change.layers.push_back(std::move(*layer));
  }
  return {};
}

// Other encodings: their effect on the weights as they are, as one layer.
Status add_staged_layer(const MemoryWeights& weights, const Digest& expected, DeltaChange& change) {
  WeightView view;
  view.name = "memory";
  view.layout = &weights.layout;
  view.data = [&weights](std::size_t tensor) { return weights.data[tensor]; };
  StageOptions options;
  options.threads = weights.threads;
  std::mutex mutex;
  DRIFTLESS_ASSIGN_OR_RETURN(
      const StagedVersion staged,
      stage_version(view, change.sources, options, [&](std::span<const std::byte> frame) {
        const std::scoped_lock lock(mutex);
        change.frame_bytes.emplace_back(frame.begin(), frame.end());
        return Status();
      }));
  const Digest reached = weights.state.digest + staged.digest_change;
  if (!weights.state.partial && reached != expected) {
    return error(StatusCode::kMismatch, change.sources.back().version().path,
                 ": after it the weights would have digest ", to_hex(reached), ", expected ",
                 to_hex(expected), ". Nothing was changed; send a full version");
  }
  std::map<std::uint32_t, TensorPieces> by_tensor;
  change.frames.reserve(change.frame_bytes.size());  // the buckets point into the frames
  for (const std::vector<std::byte>& bytes : change.frame_bytes) {
    DRIFTLESS_ASSIGN_OR_RETURN(Frame frame, Frame::decode(bytes, weights.layout, kMaxFrameBytes));
    change.frames.push_back(std::move(frame));
    const BucketView bucket = change.frames.back().bucket();
    for (const BucketEntry& entry : bucket.entries) {
      TensorPieces& tensor = by_tensor[entry.tensor];
      tensor.tensor = entry.tensor;
      tensor.pieces.push_back({bucket, entry});
    }
  }
  std::vector<TensorPieces> tensors;
  for (auto& [index, tensor] : by_tensor) tensors.push_back(std::move(tensor));
  DRIFTLESS_ASSIGN_OR_RETURN(Layer layer, decode_layer(weights.layout, tensors, weights.threads));
  change.layers.push_back(std::move(layer));
  change.sources.clear();
  return {};
}

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_deltas(std::shared_ptr<MemoryWeights> weights,
                                                   std::vector<VersionSource> chain) {
  const Manifest& last = *chain.back().version().manifest;
  const Digest expected = last.digest;
  // The digest of part of the tensors is known once they are written.
  const TargetState after{last.id, expected, true, weights->state.partial};
  auto change = std::make_unique<DeltaChange>(weights, chain.back().version().path, after);
  change->sources = std::move(chain);
  const bool positional =
      std::all_of(change->sources.begin(), change->sources.end(),
                  [](const VersionSource& source) { return source.positional(); });
  DRIFTLESS_RETURN_IF_ERROR(positional ? add_layers(*weights, *change)
                                       : add_staged_layer(*weights, expected, *change));
  return std::unique_ptr<StagedChange>(std::move(change));
}

}  // namespace driftless
