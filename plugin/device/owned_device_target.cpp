// make_owned_device_target(): a device target over memory of its own.
#include "formats/checkpoint.h"
#include "plugin/device/device_memory.h"
#include "plugin/device/device_target.h"
#include "plugin/device/uploader.h"

namespace driftless {
namespace {

constexpr std::uint64_t kTensorAlignment = 256;

class OwnedDeviceTarget final : public DeviceTarget {
 public:
  explicit OwnedDeviceTarget(const DeviceTargetOptions& options) : options_(options) {}

  Status load(const Checkpoint& base) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte*> data, allocate(base.layout()));
    DRIFTLESS_ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::make());
    DRIFTLESS_ASSIGN_OR_RETURN(Uploader uploader, Uploader::make());
    for (std::size_t i = 0; i < data.size(); ++i) {
      const std::span<const std::byte> bytes = base.tensor(i).bytes();
      DRIFTLESS_RETURN_IF_ERROR(uploader.copy(data[i], bytes, stream));
      base.forget(i, 0, bytes.size());
    }
    DRIFTLESS_RETURN_IF_ERROR(stream.wait());
    return use(base.layout(), data, VersionId{});
  }

  [[nodiscard]] const WeightLayout* layout() const override {
    return target_ ? target_->layout() : nullptr;
  }
  Status adopt_layout(const WeightLayout& layout) override {
    if (target_) return target_->adopt_layout(layout);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte*> data, allocate(layout));
    DRIFTLESS_ASSIGN_OR_RETURN(const DeviceStream stream, DeviceStream::make());
    DRIFTLESS_RETURN_IF_ERROR(stream.clear(slab_.data(), slab_.size()));
    DRIFTLESS_RETURN_IF_ERROR(stream.wait());
    return use(layout, data, std::nullopt);
  }
  [[nodiscard]] TargetState state() const override {
    return target_ ? target_->state() : TargetState{};
  }
  Status settle() override { return {}; }
  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    if (target_) return target_->stage(std::move(chain));
    return no_layout();
  }
  [[nodiscard]] DeviceTargetMemory staging_memory() const override {
    return target_ ? target_->staging_memory() : DeviceTargetMemory{};
  }
  Status read(std::size_t tensor, std::uint64_t byte_offset,
              std::span<std::byte> out) const override {
    return target_ ? target_->read(tensor, byte_offset, out) : no_layout();
  }

 private:
  static Status no_layout() {
    return error(StatusCode::kInvalidArgument, "the weights have no layout yet; adopt the run's");
  }

  Result<std::vector<std::byte*>> allocate(const WeightLayout& layout) {
    const OnDevice on(options_.device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    std::vector<std::uint64_t> offsets;
    std::uint64_t size =
        kTensorAlignment;  // never nothing: a tensor without bytes has an address, too
    for (const TensorSpec& tensor : layout.tensors()) {
      offsets.push_back(size);
      const std::uint64_t room =
          (tensor.size_bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
      if (room < tensor.size_bytes || size + room < size) {
        return error(StatusCode::kNoSpace, "no GPU holds ", layout.total_bytes(),
                     " bytes of weights");
      }
      size += room;
    }
    Result<DeviceBuffer> slab = DeviceBuffer::device(size);
    if (!slab.ok()) return slab.status().with_context("weights on the GPU");
    slab_ = std::move(*slab);
    std::vector<std::byte*> tensors;
    for (const std::uint64_t offset : offsets) tensors.push_back(slab_.data() + offset);
    return tensors;
  }

  Status use(const WeightLayout& layout, const std::vector<std::byte*>& data,
             std::optional<VersionId> initial) {
    DRIFTLESS_ASSIGN_OR_RETURN(target_, make_device_target(layout, data, initial, options_));
    return {};
  }

  DeviceTargetOptions options_;
  DeviceBuffer slab_;
  std::unique_ptr<DeviceTarget> target_;  // null until there is a layout
};

}  // namespace

Result<std::unique_ptr<DeviceTarget>> make_owned_device_target(
    FileSystem& fs, const std::optional<std::string>& base, const DeviceTargetOptions& options) {
  const OnDevice on(options.device);
  DRIFTLESS_RETURN_IF_ERROR(on.status());
  auto target = std::make_unique<OwnedDeviceTarget>(options);
  if (base) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(fs, *base));
    DRIFTLESS_RETURN_IF_ERROR(target->load(checkpoint));
  }
  return std::unique_ptr<DeviceTarget>(std::move(target));
}

}  // namespace driftless
