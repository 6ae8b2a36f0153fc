// stage_full(): a whole version, proven, then copied over the weights.
#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "kernels/host_kernels.h"
#include "plugin/memory_change.h"
#include "plugin/stopwatch.h"

namespace driftless {
namespace {

constexpr std::uint64_t kStretchBytes = std::uint64_t{4} << 20;  // one task's

struct Stretch {
  std::uint32_t tensor = 0;
  std::uint64_t byte_offset = 0;
  std::span<const std::byte> bytes;
};

void add_stretches(std::uint32_t tensor, std::uint64_t byte_offset,
                   std::span<const std::byte> bytes, std::vector<Stretch>& out) {
  while (!bytes.empty()) {
    const std::uint64_t size = std::min<std::uint64_t>(kStretchBytes, bytes.size());
    out.push_back({tensor, byte_offset, bytes.first(size)});
    bytes = bytes.subspan(size);
    byte_offset += size;
  }
}

struct Sums {
  Digest all, held;
};

Sums sum(const MemoryWeights& weights, const std::vector<Stretch>& stretches) {
  std::vector<Sums> sums(std::max(1U, weights.threads));
  // Cannot fail: nothing in it returns an error or throws.
  const Status ignored = parallel_for(
      stretches.size(), weights.threads, [&](std::size_t i, unsigned worker) -> Status {
        const Stretch& stretch = stretches[i];
        const Digest part =
            host_kernels().digest(weights.keys[stretch.tensor], stretch.byte_offset, stretch.bytes);
        sums[worker].all += part;
        if (weights.holds(stretch.tensor)) sums[worker].held += part;
        return {};
      });
  for (std::size_t i = 1; i < sums.size(); ++i) {
    sums[0].all += sums[i].all;
    sums[0].held += sums[i].held;
  }
  return sums[0];
}

class FullChange final : public StagedChange {
 public:
  FullChange(std::shared_ptr<MemoryWeights> weights, VersionSource source,
             std::vector<Stretch> stretches, const TargetState& after)
      : weights_(std::move(weights)),
        source_(std::move(source)),
        stretches_(std::move(stretches)),
        before_(weights_->state),
        after_(after) {}

  Result<CommitReport> commit() override {
    if (committed_ || weights_->state != before_) {
      return error(StatusCode::kWrongBase, source_.version().path,
                   ": the weights are not those that it was staged for; stage it again");
    }
    Stopwatch watch;
    weights_->state.valid = false;  // until all of it is there
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(stretches_.size(), weights_->threads, [&](std::size_t i, unsigned) -> Status {
          const Stretch& stretch = stretches_[i];
          if (!weights_->holds(stretch.tensor)) return {};
          std::memcpy(weights_->data[stretch.tensor] + stretch.byte_offset, stretch.bytes.data(),
                      stretch.bytes.size());
          return {};
        }));
    weights_->state = after_;
    committed_ = true;
    return CommitReport{after_.id.version, after_.digest, source_.version().manifest->changed_units,
                        watch.lap_ms()};
  }

  Status undo() override {
    return error(StatusCode::kUnsupported, source_.version().path,
                 ": a full version in memory cannot be taken back; the weights stay at it");
  }

 private:
  std::shared_ptr<MemoryWeights> weights_;
  VersionSource source_;
  std::vector<Stretch> stretches_;
  TargetState before_, after_;
  bool committed_ = false;
};

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_full(std::shared_ptr<MemoryWeights> weights,
                                                 VersionSource source) {
  std::vector<Stretch> stretches;
  for (const TensorChange& change : source.changes()) {
    for (const DensePiece& piece : source.dense(change)) {
      add_stretches(change.tensor, piece.byte_offset, piece.bytes, stretches);
    }
  }
  const Sums sums = sum(*weights, stretches);
  const Manifest& manifest = *source.version().manifest;
  if (sums.all != manifest.digest) {
    return error(StatusCode::kMismatch, source.version().path, ": its weights have digest ",
                 to_hex(sums.all), ", the manifest says ", to_hex(manifest.digest),
                 ". Nothing was changed; publish another full version");
  }
  TargetState after{manifest.id, sums.held, true, weights->state.partial};
  return std::unique_ptr<StagedChange>(std::make_unique<FullChange>(
      std::move(weights), std::move(source), std::move(stretches), after));
}

Digest digest_of(const MemoryWeights& weights) {
  std::vector<Stretch> stretches;
  for (std::uint32_t tensor = 0; tensor < weights.layout.size(); ++tensor) {
    if (!weights.holds(tensor)) continue;
    add_stretches(tensor, 0, {weights.data[tensor], weights.layout[tensor].size_bytes}, stretches);
  }
  return sum(weights, stretches).held;
}

}  // namespace driftless
