// SPDX-License-Identifier: Apache-2.0
// DeviceSide: what a publisher needs of a GPU. Null where weights lie in host memory; made by
// make_device_side() (plugin/device/device_side.h, library driftless_device), so that nobody links
// CUDA who does not use it. Of one publisher rank; one thread at a time.
//
// The snapshot lies on the device, or in pinned host memory and is brought over for the comparison,
// stretch by stretch. It changes only when a version is committed, by what the version changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "core/layout.h"
#include "core/status.h"
#include "core/version.h"

namespace driftless {

class RankPayload;
struct PayloadContext;
class WeightTarget;

// Where a publisher keeps what the receivers have.
enum class SnapshotPlace : unsigned char { kHost, kPinned, kDevice };
[[nodiscard]] std::string_view to_string(SnapshotPlace place);  // "host", "pinned", "device"

struct DeviceOptions {
  SnapshotPlace snapshot = SnapshotPlace::kPinned;  // not kHost
  int device = 0;
  // Compared at a time, of one side; bounds the device memory beside the tensors
  // (docs/operate/gpu.md).
  std::uint64_t slice_bytes = std::uint64_t{256} << 20;
};

class DeviceSide {
 public:
  virtual ~DeviceSide() = default;
  [[nodiscard]] virtual const DeviceOptions& options() const = 0;
  [[nodiscard]] bool on_device() const { return options().snapshot == SnapshotPlace::kDevice; }
  // Beside the snapshot; of the last version.
  [[nodiscard]] virtual std::uint64_t device_bytes() const = 0;

  // Memory for a snapshot, zeroed.
  [[nodiscard]] virtual Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) = 0;
  // From and to either side; done when it returns.
  [[nodiscard]] virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  struct Piece {
    std::string_view tensor;  // its name
    std::span<const std::byte> bytes;
  };
  [[nodiscard]] virtual Result<std::vector<Digest>> digests(std::span<const Piece> tensors) = 0;
  // A target over tensors in such memory, which hold `initial`.
  [[nodiscard]] virtual Result<std::unique_ptr<WeightTarget>> make_target(
      const WeightLayout& layout, std::vector<std::byte*> data,
      std::optional<VersionId> initial) = 0;

  // Compares on the device. kUnsupported where the layout needs the snapshot in host memory.
  [[nodiscard]] virtual Result<std::unique_ptr<RankPayload>> make_payload(
      const PayloadContext& context) = 0;
  // What the last payload found goes into the snapshot: queued on a stream of its own.
  [[nodiscard]] virtual Status commit() = 0;
  // It is dropped.
  virtual void abort() = 0;
};

}  // namespace driftless
