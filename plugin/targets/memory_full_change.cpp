// stage_full(): a whole version, proven, then copied over the weights.
#include <cstring>

#include "core/parallel.h"
#include "core/stopwatch.h"
#include "plugin/targets/dense_stretches.h"
#include "plugin/targets/fetched_version.h"
#include "plugin/targets/memory_change.h"

namespace driftless {
namespace {

DenseSums sum(const MemoryWeights& weights, std::span<const DenseStretch> stretches) {
  return sum_stretches(
      stretches, weights.threads,
      [&](std::uint32_t tensor) -> const DigestTensorKey& { return weights.keys[tensor]; },
      [&](std::uint32_t tensor) { return weights.holds(tensor); });
}

class FullChange final : public StagedChange {
 public:
  FullChange(std::shared_ptr<MemoryWeights> weights, VersionSource source,
             std::vector<DenseStretch> stretches, const TargetState& after)
      : weights_(std::move(weights)),
        source_(std::move(source)),
        stretches_(std::move(stretches)),
        before_(weights_->state),
        after_(after) {}

  Result<CommitReport> commit() override {
    DRIFTLESS_RETURN_IF_ERROR(
        check_staged_for(committed_, before_, weights_->state, source_.version().path));
    Stopwatch watch;
    weights_->state.valid = false;  // until all of it is there
    DRIFTLESS_RETURN_IF_ERROR(
        parallel_for(stretches_.size(), weights_->threads, [&](std::size_t i, unsigned) -> Status {
          const DenseStretch& stretch = stretches_[i];
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
                 ": a full version that was copied over the weights cannot be taken back; they "
                 "stay at it");
  }

 private:
  std::shared_ptr<MemoryWeights> weights_;
  VersionSource source_;
  std::vector<DenseStretch> stretches_;
  TargetState before_, after_;
  bool committed_ = false;
};

}  // namespace

Result<std::unique_ptr<StagedChange>> stage_full(std::shared_ptr<MemoryWeights> weights,
                                                 VersionSource source) {
  std::vector<DenseStretch> stretches = stretches_of(source);
  const DenseSums sums = sum(*weights, stretches);
  const Manifest& manifest = *source.version().manifest;
  DRIFTLESS_RETURN_IF_ERROR(check_digest(sums, manifest).with_context(source.version().path));
  if (weights->state.valid) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<StagedChange> change,
                               stage_difference(weights, source, sums.held));
    if (change) return change;
  }
  const TargetState after{manifest.id, sums.held, true, weights->state.partial};
  return std::unique_ptr<StagedChange>(std::make_unique<FullChange>(
      std::move(weights), std::move(source), std::move(stretches), after));
}

Digest digest_of(const MemoryWeights& weights) {
  std::vector<DenseStretch> stretches;
  for (std::uint32_t tensor = 0; tensor < weights.layout.size(); ++tensor) {
    if (!weights.holds(tensor)) continue;
    add_stretches(tensor, 0, {weights.data[tensor], weights.layout[tensor].size_bytes}, stretches);
  }
  return sum(weights, stretches).held;
}

}  // namespace driftless
