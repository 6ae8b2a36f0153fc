// Changes to weights in a GPU's memory, worked out beforehand: part of the device target.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/digest.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/device/device_memory.h"
#include "plugin/device/device_target.h"
#include "plugin/device/uploader.h"
#include "plugin/targets/version_source.h"

namespace driftless {

// Memory that a change works in; kept for the next one.
struct DeviceRoom {
  DeviceBuffer dev, host;  // host: pinned

  [[nodiscard]] std::span<std::byte> dev_bytes() const { return {dev.data(), dev.size()}; }
  [[nodiscard]] std::span<std::byte> host_bytes() const { return {host.data(), host.size()}; }
};

// What a device target and the changes made for it share. One thread at a time.
struct DeviceWeights {
  WeightLayout layout;
  std::vector<std::byte*> data;       // per tensor; null: not held
  std::vector<DigestTensorKey> keys;  // per tensor
  TargetState state;
  DeviceTargetOptions options;
  DeviceTargetMemory memory;
  DeviceStream stream;
  Uploader uploader;
  DeviceRoom room;  // empty while a change has it

  [[nodiscard]] bool holds(std::size_t tensor) const { return data[tensor] != nullptr; }
  // Makes `room` at least so large; kNoSpace, saying for what, where that is more than allowed.
  [[nodiscard]] Status reserve(DeviceRoom& room, std::uint64_t dev_bytes, std::uint64_t host_bytes,
                               const std::string& what);
};

// Takes the weights' room for as long as it lives, and waits for the stream before it gives it
// back: nothing works in it then.
class RoomLease {
 public:
  explicit RoomLease(std::shared_ptr<DeviceWeights> weights);
  RoomLease(const RoomLease&) = delete;
  RoomLease& operator=(const RoomLease&) = delete;
  ~RoomLease();

  [[nodiscard]] DeviceRoom& operator*() { return room_; }
  [[nodiscard]] DeviceRoom* operator->() { return &room_; }

 private:
  std::shared_ptr<DeviceWeights> weights_;
  DeviceRoom room_;
};

// Places one after the other in a stretch of memory, each at a multiple of 256 bytes.
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

// Of pieces in device memory, added up; waits for it. The rooms must hold digest_room() of them.
struct DigestRoom {
  std::uint64_t dev_bytes = 0, host_bytes = 0;
};
[[nodiscard]] DigestRoom digest_room(std::span<const cuda::DigestPiece> pieces);
[[nodiscard]] Result<Digest> digest_on_device(const DeviceWeights& weights,
                                              std::span<const cuda::DigestPiece> pieces,
                                              std::span<std::byte> room_dev,
                                              std::span<std::byte> room_host);
// The digest of the held tensors, as they are.
[[nodiscard]] Result<Digest> digest_of(const std::shared_ptr<DeviceWeights>& weights);

// Adjoining deltas, as buckets: see make_device_target().
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_device_deltas(
    std::shared_ptr<DeviceWeights> weights, std::vector<VersionSource> chain);

// One full version. Its digest is proven here; what lies on the host stays there until commit(),
// which copies, and cannot be undone.
[[nodiscard]] Result<std::unique_ptr<StagedChange>> stage_device_full(
    std::shared_ptr<DeviceWeights> weights, VersionSource source);

}  // namespace driftless
