// stage_device_full(): a whole version, proven, then copied over the weights.
#include <algorithm>

#include "core/stopwatch.h"
#include "plugin/device/device_change.h"

namespace driftless {
namespace {

constexpr std::uint64_t kChunkBytes = std::uint64_t{32} << 20;
constexpr std::size_t kChunkPieces = 4096;  // small tensors: their table is bounded, too

struct Stretch {
  std::uint32_t tensor = 0;
  DensePiece piece;
};

// The digest of bytes on the host, which pass through a chunk of device memory.
class HostSweep {
 public:
  explicit HostSweep(DeviceWeights& weights) : weights_(weights) {}

  [[nodiscard]] static Result<HostSweep> make(DeviceWeights& weights, DeviceRoom& room) {
    HostSweep sweep(weights);
    // More than any pieces of a chunk need: a piece of it takes a row for each 128 KiB, and two.
    const std::vector<cuda::DigestPiece> most(
        kChunkPieces, cuda::DigestPiece{nullptr, (std::uint64_t{2} << 17) + 1, 0, {}});
    const DigestRoom work = digest_room(most);
    DRIFTLESS_RETURN_IF_ERROR(weights.reserve(room, kChunkBytes + work.dev_bytes, work.host_bytes,
                                              "staging a full version"));
    sweep.chunk_dev_ = room.dev.data();
    sweep.work_dev_ = room.dev_bytes().subspan(kChunkBytes);
    sweep.work_host_ = room.host_bytes();
    return sweep;
  }

  Status add(std::uint32_t tensor, DensePiece piece) {
    while (!piece.bytes.empty()) {
      // The same place within 16 bytes as in the tensor: the fast case for the sweep.
      const std::uint64_t at = (used_ + 15) / 16 * 16 + piece.byte_offset % 16;
      if (pieces_.size() == kChunkPieces || at >= kChunkBytes) {
        DRIFTLESS_RETURN_IF_ERROR(flush());
        continue;
      }
      const auto bytes =
          piece.bytes.first(std::min<std::uint64_t>(piece.bytes.size(), kChunkBytes - at));
      DRIFTLESS_RETURN_IF_ERROR(weights_.uploader.copy(chunk_dev_ + at, bytes, weights_.stream));
      pieces_.push_back({chunk_dev_ + at, bytes.size(), piece.byte_offset, weights_.keys[tensor]});
      used_ = at + bytes.size();
      piece.byte_offset += bytes.size();
      piece.bytes = piece.bytes.subspan(bytes.size());
    }
    return {};
  }

  // Of all that was added since the last finish().
  Result<Digest> finish() {
    DRIFTLESS_RETURN_IF_ERROR(flush());
    const Digest sum = sum_;
    sum_ = Digest();
    return sum;
  }

 private:
  Status flush() {
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest part,
                               digest_on_device(weights_, pieces_, work_dev_, work_host_));
    sum_ += part;
    pieces_.clear();
    used_ = 0;
    return {};
  }

  DeviceWeights& weights_;
  std::byte* chunk_dev_ = nullptr;
  std::span<std::byte> work_dev_, work_host_;
  std::uint64_t used_ = 0;
  std::vector<cuda::DigestPiece> pieces_;
  Digest sum_;
};

class DeviceFullChange final : public StagedChange {
 public:
  DeviceFullChange(std::shared_ptr<DeviceWeights> weights, VersionSource source)
      : weights_(std::move(weights)),
        source_(std::move(source)),
        before_(weights_->state),
        after_{source_.version().manifest->id, {}, true, before_.partial} {
    for (const TensorChange& change : source_.changes()) {
      for (const DensePiece& piece : source_.dense(change)) {
        stretches_.push_back({change.tensor, piece});
      }
    }
  }

  Status prove() {
    RoomLease room(weights_);
    DRIFTLESS_ASSIGN_OR_RETURN(after_.digest, sum(*room, true));
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest rest, sum(*room, false));
    const Manifest& manifest = *source_.version().manifest;
    if (after_.digest + rest == manifest.digest) return {};
    return error(StatusCode::kMismatch, source_.version().path, ": its weights have digest ",
                 to_hex(after_.digest + rest), ", the manifest says ", to_hex(manifest.digest),
                 ". Nothing was changed; publish another full version");
  }

  Result<CommitReport> commit() override {
    if (committed_ || weights_->state != before_) {
      return error(StatusCode::kWrongBase, source_.version().path,
                   ": the weights are not those that it was staged for; stage it again");
    }
    const OnDevice on(weights_->options.device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    Stopwatch watch;
    weights_->state.valid = false;  // until all of it is there
    const DeviceStream& stream = weights_->stream;
    for (const auto& [tensor, piece] : stretches_) {
      if (!weights_->holds(tensor)) continue;
      std::byte* const to = weights_->data[tensor] + piece.byte_offset;
      DRIFTLESS_RETURN_IF_ERROR(piece.memory == MemoryKind::kDevice
                                    ? stream.copy(to, piece.bytes.data(), piece.bytes.size())
                                    : weights_->uploader.copy(to, piece.bytes, stream));
    }
    DRIFTLESS_RETURN_IF_ERROR(stream.wait());
    weights_->state = after_;
    committed_ = true;
    return CommitReport{after_.id.version, after_.digest, source_.version().manifest->changed_units,
                        watch.lap_ms()};
  }

  Status undo() override {
    return error(StatusCode::kUnsupported, source_.version().path,
                 ": a full version on the GPU cannot be taken back; the weights stay at it");
  }

 private:
  // Of the tensors that are held, or of the others.
  Result<Digest> sum(DeviceRoom& room, bool held) {
    std::vector<cuda::DigestPiece> there;
    for (const auto& [tensor, piece] : stretches_) {
      if (weights_->holds(tensor) != held || piece.memory != MemoryKind::kDevice) continue;
      there.push_back(
          {piece.bytes.data(), piece.bytes.size(), piece.byte_offset, weights_->keys[tensor]});
    }
    const DigestRoom work = digest_room(there);
    DRIFTLESS_RETURN_IF_ERROR(
        weights_->reserve(room, work.dev_bytes, work.host_bytes, "staging a full version"));
    DRIFTLESS_ASSIGN_OR_RETURN(
        Digest sum, digest_on_device(*weights_, there, room.dev_bytes(), room.host_bytes()));
    if (std::none_of(stretches_.begin(), stretches_.end(), [](const Stretch& stretch) {
          return stretch.piece.memory == MemoryKind::kHost;
        })) {
      return sum;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(HostSweep sweep, HostSweep::make(*weights_, room));
    for (const auto& [tensor, piece] : stretches_) {
      if (weights_->holds(tensor) != held || piece.memory == MemoryKind::kDevice) continue;
      DRIFTLESS_RETURN_IF_ERROR(sweep.add(tensor, piece));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Digest uploaded, sweep.finish());
    sum += uploaded;
    return sum;
  }

  std::shared_ptr<DeviceWeights> weights_;
  VersionSource source_;
  std::vector<Stretch> stretches_;
  TargetState before_, after_;
  bool committed_ = false;
};

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_device_full(std::shared_ptr<DeviceWeights> weights,
                                                        VersionSource source) {
  auto change = std::make_unique<DeviceFullChange>(std::move(weights), std::move(source));
  DRIFTLESS_RETURN_IF_ERROR(change->prove());
  return std::unique_ptr<StagedChange>(std::move(change));
}

}  // namespace driftless
