#include "plugin/device/device_target.h"

#include <algorithm>
#include <map>

#include "core/parallel.h"
#include "formats/checkpoint.h"
#include "formats/frame_head.h"
#include "plugin/device/device_change.h"
#include "plugin/targets/fetched_version.h"

namespace driftless {
namespace {

// Whether this version's parts can be read on the device as they are: plain frames.
bool plain_frames(const Manifest& manifest) {
  const bool frames = manifest.directory_layout == DirectoryLayout::kFrames ||
                      manifest.directory_layout == DirectoryLayout::kHdf5;
  return frames && manifest.encoding != Encoding::kDeltasZstd;
}

Result<std::vector<std::byte>> read_part(DeviceWeights& weights, const MappedFile& part,
                                         std::uint64_t bytes) {
  std::vector<std::byte> front(std::min<std::uint64_t>(bytes, part.bytes().size()));
  DRIFTLESS_RETURN_IF_ERROR(
      weights.uploader.read(front, part.bytes().data(), weights.stream).with_context(part.path()));
  return front;
}

// As much of a frame as says what it holds.
Result<std::vector<std::byte>> read_front(DeviceWeights& weights, const MappedFile& part) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::byte> header,
                             read_part(weights, part, kFrameHeaderBytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const FrameInfo info, read_frame_header(header));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t bytes, frame_head_bytes(info));
  return read_part(weights, part, bytes);
}

// Fronts of the frames that stay on the device, by their address; other parts come to the host.
Result<std::map<const std::byte*, std::vector<std::byte>>> bring_down(
    DeviceWeights& weights, std::vector<FetchedVersion>& chain) {
  std::map<const std::byte*, std::vector<std::byte>> fronts;
  for (FetchedVersion& version : chain) {
    for (MappedFile& part : version.parts) {
      if (part.memory_kind() != MemoryKind::kDevice) continue;
      if (plain_frames(version.manifest)) {
        Result<std::vector<std::byte>> front = read_front(weights, part);
        if (!front.ok()) return front.status().with_context(join_path(version.source, part.path()));
        fronts[part.bytes().data()] = std::move(*front);
        continue;
      }
      DRIFTLESS_ASSIGN_OR_RETURN(std::vector<std::byte> bytes,
                                 read_part(weights, part, part.bytes().size()));
      const auto held = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
      part = MappedFile(part.path(), held, *held);
    }
  }
  return fronts;
}

class DeviceMemoryTarget final : public DeviceTarget {
 public:
  explicit DeviceMemoryTarget(std::shared_ptr<DeviceWeights> weights)
      : weights_(std::move(weights)) {}

  [[nodiscard]] const WeightLayout* layout() const override { return &weights_->layout; }
  Status adopt_layout(const WeightLayout& layout) override {
    return weights_->layout.check_same(layout, "the weights on the GPU", "the run");
  }
  [[nodiscard]] TargetState state() const override { return weights_->state; }
  Status settle() override { return {}; }  // what could not be undone stays so
  [[nodiscard]] DeviceTargetMemory staging_memory() const override { return weights_->memory; }

  Result<std::unique_ptr<StagedChange>> stage(std::vector<FetchedVersion> chain) override {
    DRIFTLESS_RETURN_IF_ERROR(check_chain(weights_->state, weights_->layout, chain));
    const OnDevice on(weights_->options.device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    DRIFTLESS_ASSIGN_OR_RETURN(const auto fronts, bring_down(*weights_, chain));
    const FrontReader front = [&fronts](const MappedFile& part) {
      return std::span<const std::byte>(fronts.at(part.bytes().data()));
    };
    DRIFTLESS_ASSIGN_OR_RETURN(std::vector<VersionSource> sources,
                               open_chain(posix_file_system(), std::move(chain), weights_->layout,
                                          {}, weights_->options.threads, front));
    if (sources.front().version().full()) {
      return stage_device_full(weights_, std::move(sources.front()));
    }
    return stage_device_deltas(weights_, std::move(sources));
  }

  Status read(std::size_t tensor, std::uint64_t byte_offset,
              std::span<std::byte> out) const override {
    const std::uint64_t size = tensor < weights_->data.size() && weights_->holds(tensor)
                                   ? weights_->layout[tensor].size_bytes
                                   : 0;
    if (byte_offset > size || out.size() > size - byte_offset) {
      return error(StatusCode::kInvalidArgument, "tensor ", tensor, ": bytes from ", byte_offset,
                   " on, ", out.size(), " of them, but ", size, " are here");
    }
    const OnDevice on(weights_->options.device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return weights_->uploader.read(out, weights_->data[tensor] + byte_offset, weights_->stream);
  }

 private:
  std::shared_ptr<DeviceWeights> weights_;
};

Status check_pointers(const WeightLayout& layout, const std::vector<std::byte*>& data) {
  if (data.size() != layout.size()) {
    return error(StatusCode::kInvalidArgument, data.size(), " tensors on the GPU, the layout has ",
                 layout.size());
  }
  for (std::size_t i = 0; i < data.size(); ++i) {
    const unsigned unit = unit_bytes(layout[i].dtype);
    if (reinterpret_cast<std::uintptr_t>(data[i]) % unit == 0) continue;
    return error(StatusCode::kInvalidArgument, "tensor '", layout[i].name,
                 "' lies at an address that is not a multiple of its ", unit, " bytes");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<DeviceTarget>> make_device_target(const WeightLayout& layout,
                                                         std::vector<std::byte*> data_dev,
                                                         std::optional<VersionId> initial,
                                                         const DeviceTargetOptions& options) {
  DRIFTLESS_RETURN_IF_ERROR(check_pointers(layout, data_dev));
  const OnDevice on(options.device);
  DRIFTLESS_RETURN_IF_ERROR(on.status());
  auto weights = std::make_shared<DeviceWeights>();
  weights->layout = layout;
  weights->data = std::move(data_dev);
  weights->options = options;
  if (options.threads == 0) weights->options.threads = default_threads();
  DRIFTLESS_ASSIGN_OR_RETURN(weights->stream, DeviceStream::make());
  DRIFTLESS_ASSIGN_OR_RETURN(weights->uploader, Uploader::make());
  for (std::size_t i = 0; i < layout.size(); ++i) {
    weights->keys.push_back(digest_tensor_key(layout[i].name));
    if (!weights->holds(i) && layout[i].size_bytes > 0) weights->state.partial = true;
  }
  if (initial) {
    weights->state.id = *initial;
    DRIFTLESS_ASSIGN_OR_RETURN(weights->state.digest, digest_of(weights));
    weights->state.valid = true;
  }
  return std::unique_ptr<DeviceTarget>(std::make_unique<DeviceMemoryTarget>(std::move(weights)));
}

}  // namespace driftless
