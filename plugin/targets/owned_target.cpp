// make_owned_target(): a memory target over memory of its own.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/parallel.h"
#include "formats/checkpoint.h"
#include "plugin/targets/weight_target.h"

namespace driftless {
namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kCopyBytes = std::uint64_t{16} << 20;  // one task's

// Zeroed memory for all tensors of a layout.
class Slab {
 public:
  Slab() = default;
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
  ~Slab() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }

  Result<std::vector<std::byte*>> allocate(const WeightLayout& layout) {
    std::vector<std::uint64_t> offsets;
    std::uint64_t size = kAlignment;  // never nothing: a tensor without bytes has an address, too
    for (const TensorSpec& tensor : layout.tensors()) {
      offsets.push_back(size);
      const std::uint64_t room = (tensor.size_bytes + kAlignment - 1) / kAlignment * kAlignment;
      if (size + room < size) return no_memory(layout, ENOMEM);
      size += room;
    }
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return no_memory(layout, errno);
    data_ = static_cast<std::byte*>(memory);
    size_ = size;
    ::madvise(data_, size_, MADV_HUGEPAGE);  // changes lie far apart; ignored where there are none
    std::vector<std::byte*> tensors;
    for (const std::uint64_t offset : offsets) tensors.push_back(data_ + offset);
    return tensors;
  }

 private:
  static Status no_memory(const WeightLayout& layout, int reason) {
    return error(StatusCode::kNoSpace, "no memory for ", layout.total_bytes(),
                 " bytes of weights: ", std::strerror(reason));
  }

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

void copy_weights(const Checkpoint& from, const std::vector<std::byte*>& to, unsigned threads) {
  struct Stretch {
    std::size_t tensor;
    std::uint64_t offset, size;
  };
  std::vector<Stretch> stretches;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::uint64_t size = from.layout()[i].size_bytes;
    for (std::uint64_t at = 0; at < size; at += kCopyBytes) {
      stretches.push_back({i, at, std::min(kCopyBytes, size - at)});
    }
  }
  // Cannot fail: the bytes are mapped, and nothing in it returns an error.
  const Status ignored =
      parallel_for(stretches.size(), threads, [&](std::size_t task, unsigned) -> Status {
        const Stretch& stretch = stretches[task];
        std::memcpy(to[stretch.tensor] + stretch.offset,
                    from.tensor(stretch.tensor).data + stretch.offset, stretch.size);
        from.forget(stretch.tensor, stretch.offset, stretch.size);
        return {};
      });
}

class OwnedTarget final : public OwnedWeights {
 public:
  explicit OwnedTarget(unsigned threads) : threads_(threads) {}

  Status load(const Checkpoint& base) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::byte*> data, slab_.allocate(base.layout()));
    copy_weights(base, data, threads_);
    return use(base.layout(), std::move(data), VersionId{});
  }

  [[nodiscard]] const WeightLayout* layout() const override {
    return target_ ? target_->layout() : nullptr;
  }
  Status adopt_layout(const WeightLayout& layout) override {
    if (target_) return target_->adopt_layout(layout);
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::byte*> data, slab_.allocate(layout));
    return use(layout, std::move(data), std::nullopt);
  }
  [[nodiscard]] TargetState state() const override {
    return target_ ? target_->state() : TargetState{};
  }
  Status settle() override { return {}; }
  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    if (target_) return target_->stage(std::move(chain));
    return error(StatusCode::kInvalidArgument, "the weights have no layout yet; adopt the run's");
  }
  [[nodiscard]] std::span<const std::byte> tensor(std::size_t index) const override {
    return {data_[index], (*layout())[index].size_bytes};
  }

 private:
  Status use(const WeightLayout& layout, std::vector<std::byte*> data,
             std::optional<VersionId> initial) {
    data_ = data;
    DRIFTLESS_ASSIGN_OR_RETURN(target_,
                               make_memory_target(layout, std::move(data), initial, threads_));
    return {};
  }

  unsigned threads_;
  Slab slab_;
  std::vector<std::byte*> data_;
  std::unique_ptr<WeightTarget> target_;  // null until there is a layout
};

}  // namespace

Result<std::unique_ptr<OwnedWeights>> make_owned_target(FileSystem& fs,
                                                        const std::optional<std::string>& base,
                                                        unsigned threads) {
  auto target = std::make_unique<OwnedTarget>(threads == 0 ? default_threads() : threads);
  if (base) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(fs, *base));
    DRIFTLESS_RETURN_IF_ERROR(target->load(checkpoint));
  }
  return std::unique_ptr<OwnedWeights>(std::move(target));
}

}  // namespace driftless
