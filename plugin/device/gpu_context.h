// SPDX-License-Identifier: Apache-2.0
// The stream and the workspace that a GPU's WeightMemory shares with the changes placed in it. The
// workspace is kept from version to version. Private to plugin/device.
#pragma once

#include "plugin/device/device_memory.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// One thread at a time.
struct GpuContext {
  int device = 0;
  std::uint64_t max_staging_bytes = 0;  // 0: no limit
  DeviceStream stream;
  Uploader uploader;
  DeviceWorkspace workspace;  // empty while it is leased
  StagingMemory staging;

  // Queues a copy from host or device memory to the device; host memory may be freed when the call
  // returns.
  [[nodiscard]] Status copy(std::byte* to_dev, std::span<const std::byte> from, MemoryKind kind) {
    if (kind == MemoryKind::kDevice) return stream.copy(to_dev, from.data(), from.size());
    return uploader.copy(to_dev, from, stream);
  }
  // Copies both streams of a bucket: if they lie on the host, adds them to `uploads` for the
  // uploader; if on the device, queues a copy.
  [[nodiscard]] Status copy(std::byte* positions_dev, std::byte* values_dev,
                            const SourceBucket& bucket, std::vector<Uploader::Stretch>& uploads) {
    const BucketView& view = bucket.view;
    if (bucket.memory == MemoryKind::kHost) {
      uploads.push_back({positions_dev, view.positions});
      uploads.push_back({values_dev, view.values});
      return {};
    }
    DRIFTLESS_RETURN_IF_ERROR(copy(positions_dev, view.positions, bucket.memory));
    return copy(values_dev, view.values, bucket.memory);
  }
  // Makes `held` at least so large. kNoSpace, naming the purpose, if that exceeds the limit.
  [[nodiscard]] Status reserve(DeviceWorkspace& held, std::uint64_t dev_bytes,
                               std::uint64_t host_bytes, const std::string& what);
};

// Takes the context's workspace for the lifetime of this object; before giving it back, waits for
// the stream, so that no work uses it any more.
class WorkspaceLease {
 public:
  explicit WorkspaceLease(std::shared_ptr<GpuContext> gpu);
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;
  ~WorkspaceLease();

  [[nodiscard]] DeviceWorkspace& operator*() { return held_; }
  [[nodiscard]] const DeviceWorkspace* operator->() const { return &held_; }

 private:
  std::shared_ptr<GpuContext> gpu_;
  DeviceWorkspace held_;
};

// Assigns offsets in a workspace one after the other, each a multiple of 256 bytes.
class PlacePlan {
 public:
  [[nodiscard]] std::uint64_t take(std::uint64_t bytes) {
    const std::uint64_t at = used_;
    used_ += device_aligned(bytes);
    return at;
  }
  [[nodiscard]] std::uint64_t used() const { return used_; }

 private:
  std::uint64_t used_ = 0;
};

// Whether a bucket's streams can be used where they lie: they must be on the device, with the
// alignment that a frame in aligned memory gives its streams.
[[nodiscard]] inline bool usable_there(const SourceBucket& bucket) {
  constexpr std::uintptr_t kStreamAlignment = 8;
  const auto address = reinterpret_cast<std::uintptr_t>(bucket.view.positions.data()) |
                       reinterpret_cast<std::uintptr_t>(bucket.view.values.data());
  return bucket.memory == MemoryKind::kDevice && address % kStreamAlignment == 0;
}

// WeightMemory::place().
[[nodiscard]] Result<std::unique_ptr<PlacedChanges>> place_on_device(
    std::shared_ptr<GpuContext> gpu, std::span<const ChangePart> parts);
// BucketMemory::place_parts().
[[nodiscard]] Result<std::unique_ptr<PlacedChanges>> place_parts_on_device(
    std::shared_ptr<GpuContext> gpu, std::span<const BucketPart> parts,
    std::span<const SourceBucket> buckets);
// BucketMemory::place_buckets().
[[nodiscard]] Result<BucketMemory::Placed> place_buckets_on_device(
    std::shared_ptr<GpuContext> gpu, std::span<const ContiguousTensor> tensors,
    std::vector<VersionSource> chain);

// WeightMemory::find_differing(), in `scratch`; kNoSpace if it cannot grow.
[[nodiscard]] Status find_differing_on_device(GpuContext& gpu, DeviceWorkspace& scratch,
                                              std::span<const WeightMap* const> maps,
                                              std::uint64_t origin, std::uint32_t count,
                                              const std::byte* values,
                                              std::vector<std::uint32_t>& offsets);

// WeightMemory::decode_compact(), in steps of some hundred megabytes.
[[nodiscard]] Status decode_compact_on_device(const std::shared_ptr<GpuContext>& gpu,
                                              std::span<CompactUnits> blocks);

// The offsets and values of pieces of changes, packed for the memory of a GPU.

// Everything that the pieces point to outlives this.
class PiecePlaces {
 public:
  // Adds a piece whose values have `value_bytes` each. Returns its number.
  std::size_t add(const DeltaPiece& piece, unsigned value_bytes);
  void clear();

  [[nodiscard]] std::uint64_t offset_bytes() const {
    return offset_entries_ * sizeof(std::uint32_t);
  }
  [[nodiscard]] std::uint64_t value_bytes() const { return value_bytes_; }
  // Queues the upload on the stream.
  [[nodiscard]] Status upload(std::byte* offsets_dev, std::byte* values_dev, Uploader& uploader,
                              const DeviceStream& stream) const;

  // The changes of a piece that may lie in a map, as a part of a patch over the two uploads.
  [[nodiscard]] cuda::StridedPatch::Part part(std::size_t number, const ChangePart& found,
                                              std::uint64_t old_begin) const;

 private:
  struct Place {
    const DeltaPiece* piece = nullptr;
    unsigned value_bytes = 1;
    std::uint64_t offset_begin = 0;  // entries
    std::uint64_t value_begin = 0;   // bytes
  };
  std::vector<Place> places_;
  std::uint64_t offset_entries_ = 0, value_bytes_ = 0;
};

// Runs every kernel of a StridedPatch once, while no engine generates: the first use of a kernel
// stops the GPU for milliseconds.
[[nodiscard]] Status load_patch_kernels(const DeviceStream& stream);

}  // namespace driftless
