// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_factories.h"

#include <cstring>
#include <utility>

#include "plugin/device/device_capture.h"
#include "plugin/device/device_payload.h"
#include "plugin/device/device_quantizer.h"
#include "plugin/interchange/layouts.h"

namespace driftless {
namespace {

class CudaPublisherDevice final : public PublisherDevice {
 public:
  [[nodiscard]] static Result<std::shared_ptr<PublisherDevice>> make(const DeviceOptions& options) {
    DRIFTLESS_RETURN_IF_ERROR(check_device(options.device));
    auto made = std::make_shared<CudaPublisherDevice>();
    made->work_.options = options;
    DRIFTLESS_ASSIGN_OR_RETURN(made->work_.stream, DeviceStream::make());
    DRIFTLESS_ASSIGN_OR_RETURN(made->mark_, DeviceEvent::make());
    DRIFTLESS_RETURN_IF_ERROR(made->work_.differ.open(made->work_.stream));
    DRIFTLESS_ASSIGN_OR_RETURN(made->work_.memory, make_device_memory(options.device));
    return std::shared_ptr<PublisherDevice>(std::move(made));
  }

  [[nodiscard]] const DeviceOptions& options() const override { return work_.options; }
  [[nodiscard]] std::uint64_t device_bytes() const override {
    return work_.differ.device_bytes() + work_.found.held_bytes() + captured_.device_bytes() +
           quantizer_.device_bytes();
  }

  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) override {
    if (on_device()) return work_.memory->allocate(bytes);
    DRIFTLESS_ASSIGN_OR_RETURN(const DeviceBuffer buffer,
                               DeviceBuffer::make(bytes, MemoryKind::kHost));
    std::memset(buffer.data(), 0, bytes);
    return buffer.memory();
  }

  Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.copy(to, from, bytes));
    return work_.stream.wait();
  }

  [[nodiscard]] std::shared_ptr<WeightMemory> memory() const override { return work_.memory; }

  Result<std::unique_ptr<RankPayload>> make_payload(const PayloadContext& context) override {
    const bool full = context.frame.encoding == Encoding::kFull;
    const bool shards = publication_format(context.directory_layout).sharded(full);
    const bool pinned = work_.options.snapshot == SnapshotPlace::kPinned;
    // Without a snapshot, quantized codes and scales lie in host memory.
    const bool on_host =
        context.store->captured() && context.store->memory_kind() == MemoryKind::kHost;
    if (on_host) return make_rank_payload(context);
    if (shards && !pinned) {
      return error(StatusCode::kUnsupported,
                   "this layout is made from tensors in host memory: set `snapshot` to pinned");
    }
    // Any thread may publish. Waits until the last version is in the snapshot, before the device or
    // the CPU reads it.
    DRIFTLESS_RETURN_IF_ERROR(check_device(work_.options.device));
    DRIFTLESS_RETURN_IF_ERROR(work_.stream.wait());
    if (!full) abort();  // an anchor keeps what its version is about to commit
    if (shards || (full && pinned)) return make_host_copy_payload(context, work_);
    if (full) return make_device_full_payload(context, work_);
    if (context.store->captured()) return make_rank_payload(context);  // uses the captured changes
    return make_device_delta_payload(context, work_);
  }

  Status quantize(QuantizeRule rule, std::span<DeviceMatrix> boxes, bool coded) override {
    DRIFTLESS_RETURN_IF_ERROR(check_device(work_.options.device));
    return quantizer_.quantize(rule, boxes, coded, work_.stream);
  }

  Status quantize_groups(unsigned group, std::span<DeviceGroups> boxes) override {
    DRIFTLESS_RETURN_IF_ERROR(check_device(work_.options.device));
    return quantizer_.quantize_groups(group, boxes, work_.stream);
  }

  Status commit() override {
    // Also after a failure the changes are gone: a later version has its own.
    for (const DeviceWork::Change& change : std::exchange(work_.changes, {})) {
      DRIFTLESS_RETURN_IF_ERROR(change.patch.scatter(change.values_dev, work_.stream.get()));
    }
    return {};
  }

  Status capture(std::span<const TensorPair> pairs, std::uint64_t limit_bytes,
                 void* trainer) override {
    DRIFTLESS_RETURN_IF_ERROR(check_device(work_.options.device));
    return captured_.capture(pairs, limit_bytes, DeviceStream::borrowed(trainer));
  }

  Status copy_on_stream(std::byte* to, const std::byte* from, std::uint64_t bytes,
                        void* trainer) override {
    return DeviceStream::borrowed(trainer).copy(to, from, bytes);
  }

  Status mark(void* trainer) override {
    DRIFTLESS_RETURN_IF_ERROR(check_device(work_.options.device));
    return mark_.record(DeviceStream::borrowed(trainer));
  }

  Status wait_for_trainer() override {
    DRIFTLESS_RETURN_IF_ERROR(captured_.wait());
    return mark_.wait();
  }

  Result<std::vector<std::uint32_t>> fetch_captured(
      unsigned threads,
      const std::function<void(std::uint32_t, std::uint64_t, PieceChanges&)>& use) override {
    DRIFTLESS_RETURN_IF_ERROR(check_device(work_.options.device));
    return captured_.fetch(work_.stream, threads, use);
  }

  void abort() override {
    work_.differ.drop();
    work_.changes.clear();
    const Status reset = work_.reset();
  }

 private:
  DeviceWork work_;
  DeviceCapture captured_;
  DeviceQuantizer quantizer_;
  DeviceEvent mark_;
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

Status DeviceWork::reset() {
  DRIFTLESS_RETURN_IF_ERROR(stream.wait());
  found.reset();
  host.reset();
  return {};
}

Result<std::shared_ptr<PublisherDevice>> make_publisher_device(const DeviceOptions& options) {
  if (options.snapshot == SnapshotPlace::kHost) {
    return error(StatusCode::kInvalidArgument, "a snapshot in host memory needs no GPU");
  }
  return CudaPublisherDevice::make(options);
}

}  // namespace driftless
