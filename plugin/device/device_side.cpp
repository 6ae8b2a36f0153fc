// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_side.h"

#include <algorithm>
#include <array>

#include "plugin/device/device_payload.h"
#include "plugin/device/device_target.h"

namespace driftless {
namespace {

class GpuSide final : public DeviceSide {
 public:
  [[nodiscard]] static Result<std::shared_ptr<DeviceSide>> make(const DeviceOptions& options) {
    DRIFTLESS_RETURN_IF_ERROR(check_device(options.device));
    auto side = std::make_shared<GpuSide>();
    side->work_.options = options;
    DRIFTLESS_ASSIGN_OR_RETURN(side->work_.stream, DeviceStream::make());
    DRIFTLESS_RETURN_IF_ERROR(side->work_.differ.open(side->work_.stream));
    return std::shared_ptr<DeviceSide>(std::move(side));
  }

  const DeviceOptions& options() const override { return work_.options; }
  std::uint64_t device_bytes() const override {
    return work_.differ.device_bytes() + work_.found.held_bytes();
  }

  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) override {
    DRIFTLESS_ASSIGN_OR_RETURN(DeviceBuffer buffer, on_device() ? DeviceBuffer::device(bytes)
                                                                : DeviceBuffer::pinned(bytes));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.clear(buffer.data(), bytes));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    const auto owner = std::make_shared<DeviceBuffer>(std::move(buffer));
    return std::shared_ptr<std::byte>(owner, owner->data());
  }

  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.copy(to, from, bytes));
    return work_.stream.wait();
  }

  Result<std::vector<Digest>> digests(std::span<const Piece> tensors) override {
    return work_.digests(tensors);
  }

  Result<std::unique_ptr<WeightTarget>> make_target(const WeightLayout& layout,
                                                    std::vector<std::byte*> data,
                                                    std::optional<VersionId> initial) override {
    DeviceTargetOptions target;
    target.device = work_.options.device;
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<DeviceTarget> made,
                               make_device_target(layout, std::move(data), initial, target));
    return std::unique_ptr<WeightTarget>(std::move(made));
  }

  Result<std::unique_ptr<RankPayload>> make_payload(const PayloadContext& context) override {
    const bool full = context.frame.encoding == Encoding::kFull;
    const bool shards = context.directory_layout == DirectoryLayout::kHfDelta ||
                        (full && context.directory_layout == DirectoryLayout::kFlush);
    if (shards && on_device()) {
      return error(StatusCode::kUnsupported,
                   "this layout is made from tensors in host memory: set `snapshot` to pinned");
    }
    // Any thread may publish. What the last version wrote into the snapshot is there before
    // anybody, the processor included, reads it.
    DRIFTLESS_RETURN_IF_ERROR(check_device(work_.options.device));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    if (!full) abort();  // an anchor leaves alone what its version is about to commit
    if (shards || (full && !on_device())) return make_host_copy_payload(context, work_);
    return full ? make_device_full_payload(context, work_)
                : make_device_delta_payload(context, work_);
  }

  Status commit() override {
    for (const DeviceWork::Change& change : work_.changes) {
      DRIFTLESS_RETURN_IF_ERROR(change.patch.scatter(change.values_dev, work_.stream.get()));
    }
    work_.changes.clear();
    return {};
  }

  void abort() override {
    work_.differ.drop();
    work_.changes.clear();
    const Status reset = work_.reset();
  }

 private:
  DeviceWork work_;
};

}  // namespace

Result<cuda::Patch> DeviceWork::make_patch(std::span<const cuda::Patch::Tensor> tensors,
                                           unsigned unit_bytes, cuda::PositionCoding coding,
                                           const std::byte* positions_dev) {
  const cuda::WorkspaceSize size = cuda::Patch::workspace_size(tensors);
  cuda::Workspace workspace;
  workspace.dev_bytes = size.dev_bytes;
  workspace.host_bytes = size.host_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(workspace.dev, found.take(size.dev_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(workspace.host, host.take(size.host_bytes));
  return cuda::Patch::make(tensors, unit_bytes, coding, positions_dev, workspace, stream.get());
}

// Each batch in one launch, one after the other in the same workspace: its table is in use until
// the sums are there.
Result<std::vector<Digest>> DeviceWork::sum_batches(
    std::span<const std::span<const DeviceSide::Piece>> batches) const {
  std::vector<std::vector<cuda::DigestPiece>> pieces(batches.size());
  cuda::WorkspaceSize most;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    for (const DeviceSide::Piece& tensor : batches[i]) {
      pieces[i].push_back(
          {tensor.bytes.data(), tensor.bytes.size(), 0, digest_tensor_key(tensor.tensor)});
    }
    const cuda::WorkspaceSize size = cuda::digest_workspace_size(pieces[i]);
    most.dev_bytes = std::max(most.dev_bytes, size.dev_bytes);
    most.host_bytes = std::max(most.host_bytes, size.host_bytes);
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer dev, DeviceBuffer::device(most.dev_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer pinned, DeviceBuffer::pinned(most.host_bytes));
  DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer sums,
                             DeviceBuffer::device(cuda::kDigestSums * sizeof(std::uint64_t)));
  auto* const sums_dev = reinterpret_cast<std::uint64_t*>(sums.data());
  std::vector<Digest> digests;
  for (const std::vector<cuda::DigestPiece>& batch : pieces) {
    DRIFTLESS_RETURN_IF_ERROR(cuda::digest(
        batch, {dev.data(), dev.size(), pinned.data(), pinned.size()}, sums_dev, stream.get()));
    std::array<std::uint64_t, cuda::kDigestSums> fetched{};
    DRIFTLESS_RETURN_IF_ERROR(stream.copy(fetched.data(), sums_dev, sizeof(fetched)));
    DRIFTLESS_RETURN_IF_ERROR(stream.wait());
    digests.push_back(cuda::digest_from_sums(fetched));
  }
  return digests;
}

Result<Digest> DeviceWork::digest(std::span<const DeviceSide::Piece> tensors) const {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<Digest> sums, sum_batches(std::span(&tensors, 1)));
  return sums.front();
}

Result<std::vector<Digest>> DeviceWork::digests(std::span<const DeviceSide::Piece> tensors) const {
  std::vector<std::span<const DeviceSide::Piece>> batches;
  for (const DeviceSide::Piece& tensor : tensors) batches.emplace_back(&tensor, 1);
  return sum_batches(batches);
}

Status DeviceWork::reset() {
  DRIFTLESS_RETURN_IF_ERROR(stream.wait());
  found.reset();
  host.reset();
  return {};
}

Result<std::shared_ptr<DeviceSide>> make_device_side(const DeviceOptions& options) {
  if (options.snapshot == SnapshotPlace::kHost) {
    return error(StatusCode::kInvalidArgument, "a snapshot in host memory needs no device side");
  }
  return GpuSide::make(options);
}

}  // namespace driftless
