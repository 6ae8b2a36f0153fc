// SPDX-License-Identifier: Apache-2.0
// make_owned_target(): contiguous tensors in memory of the target's own.
#include <algorithm>
#include <limits>

#include "core/parallel.h"
#include "formats/checkpoint.h"
#include "plugin/targets/mapped_target.h"

namespace driftless {
namespace {

constexpr std::uint64_t kTensorAlignment = 256;
constexpr std::uint64_t kLoadBytes = std::uint64_t{16} << 20;  // of one task

// Copies a checkpoint to contiguous tensors.
Status load_weights(const Checkpoint& from, const std::vector<std::byte*>& to, WeightMemory& memory,
                    unsigned threads) {
  struct Stretch {
    WeightMap map;  // of its bytes onto themselves
    std::size_t tensor = 0;
    std::uint64_t offset = 0, size = 0;
  };
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::uint64_t bytes = from.layout()[i].size_bytes;
    if (bytes == 0) continue;
    Stretch each{{}, i, 0, 0};
    const StridedView all{0, {bytes}, {1}};
    DRIFTLESS_ASSIGN_OR_RETURN(each.map.map, StridedMap::make(all, bytes, all, bytes));
    each.map.data = to[i];
    for (; each.offset < bytes; each.offset += each.size) {
      each.size = std::min(kLoadBytes, bytes - each.offset);
      stretches.push_back(each);
    }
  }
  DRIFTLESS_RETURN_IF_ERROR(parallel_for(
      stretches.size(), memory.threads(threads), [&](std::size_t task, unsigned) -> Status {
        const Stretch& each = stretches[task];
        const WeightMap* const map = &each.map;
        const Status status =
            memory.write(std::span(&map, 1), each.offset, each.size,
                         from.tensor(each.tensor).data + each.offset, MemoryKind::kHost);
        from.forget(each.tensor, each.offset, each.size);
        return status;
      }));
  return memory.finish();
}

class OwnedTarget final : public MappedTarget {
 public:
  OwnedTarget(std::shared_ptr<WeightMemory> memory, unsigned threads)
      : memory_(std::move(memory)), threads_(threads) {}

  Status load(const Checkpoint& base) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte*> data, allocate(base.layout()));
    DRIFTLESS_RETURN_IF_ERROR(load_weights(base, data, *memory_, threads_));
    return use(base.layout(), data, VersionId{});
  }

  [[nodiscard]] const WeightLayout* layout() const override {
    return target_ ? target_->layout() : nullptr;
  }
  Status adopt_layout(const WeightLayout& layout) override {
    if (target_) return target_->adopt_layout(layout);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte*> data, allocate(layout));
    return use(layout, data, std::nullopt);
  }
  [[nodiscard]] TargetState state() const override {
    return target_ ? target_->state() : TargetState{};
  }
  [[nodiscard]] bool proven() const override { return target_ && target_->proven(); }
  Status settle() override { return {}; }
  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    if (target_) return target_->stage(std::move(chain));
    return no_layout();
  }
  [[nodiscard]] StagingMemory staging_memory() const override { return memory_->staging_memory(); }
  Status read(std::size_t tensor, std::uint64_t byte_offset,
              std::span<std::byte> out) const override {
    return target_ ? target_->read(tensor, byte_offset, out) : no_layout();
  }
  [[nodiscard]] std::span<const std::byte> tensor(std::size_t index) const override {
    return target_ ? target_->tensor(index) : std::span<const std::byte>();
  }

 private:
  static Status no_layout() {
    return error(StatusCode::kInvalidArgument, "the weights have no layout yet; adopt the run's");
  }

  Result<std::vector<std::byte*>> allocate(const WeightLayout& layout) {
    std::vector<std::uint64_t> offsets;
    std::uint64_t size = kTensorAlignment;  // never nothing
    for (const TensorSpec& tensor : layout.tensors()) {
      offsets.push_back(size);
      const std::uint64_t most = std::numeric_limits<std::uint64_t>::max() - kTensorAlignment;
      if (tensor.size_bytes > most - size) {
        return error(StatusCode::kNoSpace, "no memory holds ", layout.total_bytes(),
                     " bytes of weights");
      }
      size += (tensor.size_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    }
    DRIFTLESS_ASSIGN_OR_RETURN(slab_, memory_->allocate(size));
    std::vector<std::byte*> tensors;
    for (const std::uint64_t offset : offsets) tensors.push_back(slab_.get() + offset);
    return tensors;
  }

  Status use(const WeightLayout& layout, const std::vector<std::byte*>& data,
             std::optional<VersionId> initial) {
    DRIFTLESS_ASSIGN_OR_RETURN(target_,
                               make_contiguous_target(layout, data, initial, threads_, memory_));
    return {};
  }

  std::shared_ptr<WeightMemory> memory_;
  unsigned threads_;
  std::shared_ptr<std::byte> slab_;       // of all tensors
  std::unique_ptr<MappedTarget> target_;  // null until there is a layout
};

}  // namespace

Result<std::unique_ptr<MappedTarget>> make_owned_target(FileSystem& fs,
                                                        const std::optional<std::string>& base,
                                                        unsigned threads,
                                                        std::shared_ptr<WeightMemory> memory) {
  auto target =
      std::make_unique<OwnedTarget>(std::move(memory), threads == 0 ? default_threads() : threads);
  if (base) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(fs, *base));
    DRIFTLESS_RETURN_IF_ERROR(target->load(checkpoint));
  }
  return std::unique_ptr<MappedTarget>(std::move(target));
}

Result<std::unique_ptr<OwnedWeights>> make_owned_target(FileSystem& fs,
                                                        const std::optional<std::string>& base,
                                                        unsigned threads) {
  return make_owned_target(fs, base, threads, make_host_memory());
}

}  // namespace driftless
