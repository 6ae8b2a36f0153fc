// make_memory_target(): tensors in host memory.
#include <algorithm>

#include "core/parallel.h"
#include "plugin/targets/fetched_version.h"
#include "plugin/targets/memory_change.h"
#include "plugin/targets/weight_target.h"

namespace driftless {
namespace {

class MemoryTarget final : public WeightTarget {
 public:
  explicit MemoryTarget(std::shared_ptr<MemoryWeights> weights) : weights_(std::move(weights)) {}

  [[nodiscard]] const WeightLayout* layout() const override { return &weights_->layout; }
  Status adopt_layout(const WeightLayout& layout) override {
    return weights_->layout.check_same(layout, "the weights in memory", "the run");
  }
  [[nodiscard]] TargetState state() const override { return weights_->state; }
  Status settle() override { return {}; }  // what could not be undone stays so

  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    DRIFTLESS_RETURN_IF_ERROR(check_chain(weights_->state, weights_->layout, chain));
    // Nothing is spooled: without a directory, what is compressed is inflated in memory.
    DRIFTLESS_ASSIGN_OR_RETURN(
        std::vector<VersionSource> sources,
        open_chain(posix_file_system(), std::move(chain), weights_->layout, {}, weights_->threads));
    if (sources.front().version().full()) return stage_full(weights_, std::move(sources.front()));
    return stage_deltas(weights_, std::move(sources));
  }

 private:
  std::shared_ptr<MemoryWeights> weights_;
};

}  // namespace

Result<std::unique_ptr<WeightTarget>> make_memory_target(const WeightLayout& layout,
                                                         std::vector<std::byte*> data,
                                                         std::optional<VersionId> initial,
                                                         unsigned threads) {
  if (data.size() != layout.size()) {
    return error(StatusCode::kInvalidArgument, data.size(), " tensors in memory, the layout has ",
                 layout.size());
  }
  auto weights = std::make_shared<MemoryWeights>();
  weights->layout = layout;
  weights->data = std::move(data);
  weights->threads = threads == 0 ? default_threads() : threads;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    weights->keys.push_back(digest_tensor_key(layout[i].name));
    if (!weights->holds(i) && layout[i].size_bytes > 0) weights->state.partial = true;
  }
  if (initial) {
    weights->state.id = *initial;
    weights->state.digest = digest_of(*weights);
    weights->state.valid = true;
  }
  return std::unique_ptr<WeightTarget>(std::make_unique<MemoryTarget>(std::move(weights)));
}

}  // namespace driftless
