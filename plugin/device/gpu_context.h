// SPDX-License-Identifier: Apache-2.0
// What a GPU's WeightMemory and the changes placed in it share: a stream, and workspace that is
// kept from version to version. Part of plugin/device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/digest.h"
#include "core/status.h"
#include "plugin/device/device_memory.h"
#include "plugin/device/uploader.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// Memory that changes work in.
struct GpuWorkspace {
  DeviceBuffer dev, host;  // host: pinned

  [[nodiscard]] std::span<std::byte> dev_bytes() const { return {dev.data(), dev.size()}; }
  [[nodiscard]] std::span<std::byte> host_bytes() const { return {host.data(), host.size()}; }
};

// One thread at a time.
struct GpuContext {
  int device = 0;
  std::uint64_t max_staging_bytes = 0;  // 0: as much as there is
  DeviceStream stream;
  Uploader uploader;
  GpuWorkspace workspace;  // empty while somebody has it
  StagingMemory staging;

  // Makes it at least so large; kNoSpace, saying for what, where that is more than allowed.
  [[nodiscard]] Status reserve(GpuWorkspace& held, std::uint64_t dev_bytes,
                               std::uint64_t host_bytes, const std::string& what);
};

// Has the context's workspace for as long as it lives, and waits for the stream before it gives it
// back: nothing works in it then.
class WorkspaceLease {
 public:
  explicit WorkspaceLease(std::shared_ptr<GpuContext> gpu);
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;
  ~WorkspaceLease();

  [[nodiscard]] GpuWorkspace& operator*() { return held_; }
  [[nodiscard]] const GpuWorkspace* operator->() const { return &held_; }

 private:
  std::shared_ptr<GpuContext> gpu_;
  GpuWorkspace held_;
};

// Places one after the other in a workspace, each at a multiple of 256 bytes.
class PlacePlan {
 public:
  [[nodiscard]] std::uint64_t take(std::uint64_t bytes) {
    const std::uint64_t at = used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  [[nodiscard]] std::uint64_t used() const { return used_; }

 private:
  static constexpr std::uint64_t kAlignment = 256;
  std::uint64_t used_ = 0;
};

// WeightMemory::digest(): bytes on the host pass through a chunk of device memory.
[[nodiscard]] Result<Digest> sum_on_device(const std::shared_ptr<GpuContext>& gpu,
                                           std::span<const TensorBytes> bytes);
// WeightMemory::place().
[[nodiscard]] Result<std::unique_ptr<PlacedChanges>> place_on_device(
    std::shared_ptr<GpuContext> gpu, std::span<const ChangePart> parts);
// BucketMemory::place_buckets().
[[nodiscard]] Result<BucketMemory::Placed> place_buckets_on_device(
    std::shared_ptr<GpuContext> gpu, std::span<const ContiguousTensor> tensors,
    std::vector<VersionSource> chain);

}  // namespace driftless
