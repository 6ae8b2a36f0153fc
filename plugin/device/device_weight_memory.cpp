// SPDX-License-Identifier: Apache-2.0
#include "plugin/device/device_weight_memory.h"

#include <algorithm>

#include "kernels/cuda/operations.h"
#include "plugin/device/gpu_context.h"
#include "plugin/device/piece_places.h"

namespace driftless {
namespace {

constexpr std::uint64_t kWidestUnit = 8;

// Where the table of a patch lies, behind so many bytes of values.
std::uint64_t table_at(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }

cuda::WorkspaceSize table_size(std::uint64_t count) {
  cuda::StridedPatch::Part part;
  part.count = count;
  return cuda::StridedPatch::workspace_size(std::span(&part, 1));
}

class DeviceWeightMemory final : public WeightMemory, private BucketMemory {
 public:
  explicit DeviceWeightMemory(std::shared_ptr<GpuContext> gpu) : gpu_(std::move(gpu)) {}

  [[nodiscard]] MemoryKind kind() const override { return MemoryKind::kDevice; }
  [[nodiscard]] unsigned threads(unsigned /*wanted*/) const override { return 1; }
  [[nodiscard]] StagingMemory staging_memory() const override { return gpu_->staging; }
  [[nodiscard]] BucketMemory* buckets() override { return this; }

  Result<std::unique_ptr<PlacedChanges>> place(std::span<const ChangePart> parts,
                                               unsigned /*threads*/) override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return place_on_device(gpu_, parts);
  }
  Result<Placed> place_buckets(std::span<const ContiguousTensor> tensors,
                               std::vector<VersionSource> chain) override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return place_buckets_on_device(gpu_, tensors, std::move(chain));
  }
  Result<Digest> digest(std::span<const TensorBytes> bytes, unsigned /*threads*/) override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return sum_on_device(gpu_, bytes);
  }

  Status read(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
              std::byte* values) override {
    if (maps.empty() || count == 0) return {};
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    const unsigned width = maps.front()->unit_bytes;
    bool gathered = false;
    for (const WeightMap* map : maps) {
      if (map->plain()) continue;
      DRIFTLESS_RETURN_IF_ERROR(reserve(count));
      DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch, dense(*map, origin, count));
      DRIFTLESS_RETURN_IF_ERROR(patch.gather_strided(scratch_.dev.data(), gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());  // the table is used again
      gathered = true;
    }
    if (gathered) {
      DRIFTLESS_RETURN_IF_ERROR(
          gpu_->uploader.read({values, count * width}, scratch_.dev.data(), gpu_->stream));
    }
    for (const WeightMap* map : maps) {
      const auto [begin, end] = range_of(*map, origin, count);
      if (!map->plain() || begin >= end) continue;
      DRIFTLESS_RETURN_IF_ERROR(
          gpu_->uploader.read({values + (begin - origin) * width, (end - begin) * width},
                              map->at(begin), gpu_->stream));
    }
    return {};
  }

  Status write(std::span<const WeightMap* const> maps, std::uint64_t origin, std::uint64_t count,
               const std::byte* values, MemoryKind from) override {
    if (maps.empty() || count == 0) return {};
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    const unsigned width = source_bytes(maps.front()->cast, maps.front()->unit_bytes);
    bool copied = false;
    for (const WeightMap* map : maps) {
      if (map->plain()) {
        const auto [begin, end] = range_of(*map, origin, count);
        if (begin >= end) continue;
        DRIFTLESS_RETURN_IF_ERROR(
            copy(map->at(begin), {values + (begin - origin) * width, (end - begin) * width}, from));
        continue;
      }
      if (!copied) {
        DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());  // what was there before may be in use
        DRIFTLESS_RETURN_IF_ERROR(reserve(count));
        DRIFTLESS_RETURN_IF_ERROR(copy(scratch_.dev.data(), {values, count * width}, from));
        copied = true;
      }
      DRIFTLESS_ASSIGN_OR_RETURN(const cuda::StridedPatch patch, dense(*map, origin, count));
      DRIFTLESS_RETURN_IF_ERROR(
          patch.scatter_strided(scratch_.dev.data(), false, gpu_->stream.get()));
      DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());  // the table is used again
    }
    return {};
  }

  Status finish() override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return gpu_->stream.wait();
  }

  Status fetch(std::span<std::byte> to, const std::byte* from) override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    return gpu_->uploader.read(to, from, gpu_->stream);
  }

  Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) override {
    const OnDevice on(gpu_->device);
    DRIFTLESS_RETURN_IF_ERROR(on.status());
    Result<DeviceBuffer> made = DeviceBuffer::device(bytes);
    if (!made.ok()) return made.status().with_context("weights on the GPU");
    const auto held = std::make_shared<DeviceBuffer>(std::move(*made));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.clear(held->data(), bytes));
    DRIFTLESS_RETURN_IF_ERROR(gpu_->stream.wait());
    return std::shared_ptr<std::byte>(held, held->data());
  }

 private:
  // The units of [origin, origin + count) that lie in the map's range.
  static std::pair<std::uint64_t, std::uint64_t> range_of(const WeightMap& map,
                                                          std::uint64_t origin,
                                                          std::uint64_t count) {
    return {std::max(origin, map.map.source_offset), std::min(origin + count, map.map.source_end)};
  }
  Status copy(std::byte* to_dev, std::span<const std::byte> from, MemoryKind kind) {
    if (kind == MemoryKind::kDevice) return gpu_->stream.copy(to_dev, from.data(), from.size());
    return gpu_->uploader.copy(to_dev, from, gpu_->stream);
  }
  Status reserve(std::uint64_t count) {
    const cuda::WorkspaceSize table = table_size(count);
    DRIFTLESS_RETURN_IF_ERROR(
        scratch_.dev.reserve(table_at(count * kWidestUnit) + table.dev_bytes, MemoryKind::kDevice));
    return scratch_.host.reserve(table.host_bytes, MemoryKind::kHost);
  }
  // Every unit of [origin, origin + count) that the map has; values are at the scratch's begin.
  Result<cuda::StridedPatch> dense(const WeightMap& map, std::uint64_t origin,
                                   std::uint64_t count) {
    cuda::StridedPatch::Part part;
    part.map = map.map;
    part.data_dev = map.data;
    part.cast = map.cast;
    part.origin = origin;
    part.count = count;
    const cuda::WorkspaceSize table = table_size(count);
    const cuda::Workspace workspace{scratch_.dev.data() + table_at(count * kWidestUnit),
                                    table.dev_bytes, scratch_.host.data(), table.host_bytes};
    return cuda::StridedPatch::make(std::span(&part, 1), map.unit_bytes, nullptr, workspace,
                                    gpu_->stream.get());
  }

  std::shared_ptr<GpuContext> gpu_;
  GpuWorkspace scratch_;  // for read() and write()
};

}  // namespace

Result<std::shared_ptr<WeightMemory>> make_bounded_device_memory(int device,
                                                                 std::uint64_t max_staging_bytes) {
  const OnDevice on(device);
  DRIFTLESS_RETURN_IF_ERROR(on.status());
  auto gpu = std::make_shared<GpuContext>();
  gpu->device = device;
  gpu->max_staging_bytes = max_staging_bytes;
  DRIFTLESS_ASSIGN_OR_RETURN(gpu->stream, DeviceStream::make());
  DRIFTLESS_ASSIGN_OR_RETURN(gpu->uploader, Uploader::make());
  DRIFTLESS_RETURN_IF_ERROR(load_patch_kernels(gpu->stream));
  return std::shared_ptr<WeightMemory>(std::make_shared<DeviceWeightMemory>(std::move(gpu)));
}

Result<std::shared_ptr<WeightMemory>> make_device_memory(int device) {
  return make_bounded_device_memory(device, 0);
}

}  // namespace driftless
