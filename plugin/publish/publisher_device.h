// SPDX-License-Identifier: Apache-2.0
// PublisherDevice: what a publisher needs of a GPU. Null if weights lie in host memory; made by
// make_publisher_device() (plugin/device/device_factories.h, library driftless_device), so
// that nobody links CUDA who does not use it. Of one publisher rank; one thread at a time.
//
// The snapshot lies on the device, or in pinned host memory and is brought over for the comparison,
// stretch by stretch. It changes only when a version is committed, by what the version changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/delta_view.h"
#include "core/status.h"
#include "kernels/quantize.h"

namespace driftless {

class RankPayload;
struct PayloadContext;
class WeightMemory;
struct PieceChanges;
struct TensorPair;

// Where a publisher keeps what the receivers have.
enum class SnapshotPlace : unsigned char { kHost, kPinned, kDevice, kNone };
[[nodiscard]] std::string_view to_string(SnapshotPlace place);  // "host", ..., "none"
[[nodiscard]] Result<SnapshotPlace> parse_snapshot(std::string_view name);

struct DeviceOptions {
  SnapshotPlace snapshot = SnapshotPlace::kPinned;  // not kHost
  int device = 0;
  // Compared at a time, of one side; bounds the device memory beside the tensors
  // (docs/operate/gpu.md).
  std::uint64_t slice_bytes = std::uint64_t{256} << 20;
};

// A box of a matrix of bfloat16 on the GPU, as Quantizer::part takes it.
struct DeviceMatrix {
  MatrixPart part;
  const std::byte* weights = nullptr;
  std::span<std::uint16_t> largest;  // of each block that it touches; in host memory
  const std::byte* codes = nullptr;  // on the GPU; quantize() says where
};

class PublisherDevice {
 public:
  virtual ~PublisherDevice() = default;
  [[nodiscard]] virtual const DeviceOptions& options() const = 0;
  [[nodiscard]] bool on_device() const { return options().snapshot == SnapshotPlace::kDevice; }
  // Beside the snapshot; of the last version.
  [[nodiscard]] virtual std::uint64_t device_bytes() const = 0;

  // Memory for a snapshot, zeroed.
  [[nodiscard]] virtual Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) = 0;
  // From and to either side; done when it returns.
  [[nodiscard]] virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  // The GPU's memory, also if the snapshot lies in pinned memory.
  [[nodiscard]] virtual std::shared_ptr<WeightMemory> memory() const = 0;

  // Compares on the device. kUnsupported if the layout needs the snapshot in host memory.
  [[nodiscard]] virtual Result<std::unique_ptr<RankPayload>> make_payload(
      const PayloadContext& context) = 0;
  // Quantizes boxes where they lie, or measures them only. Done when it returns; codes stay until
  // the next call.
  [[nodiscard]] virtual Status quantize(QuantizeRule rule, std::span<DeviceMatrix> boxes,
                                        bool coded) = 0;
  // What the last payload found goes into the snapshot: queued on a stream of its own.
  [[nodiscard]] virtual Status commit() = 0;
  // It is dropped.
  virtual void abort() = 0;

  // Without a snapshot (LiveStore). `trainer`: the stream (a cudaStream_t; null: the default one)
  // that the weights are written on. Compares, on that stream, where both sides lie: what is queued
  // there later may write them. What changed stays on the device until fetch_captured().
  [[nodiscard]] virtual Status capture(std::span<const TensorPair> pairs, std::uint64_t limit_bytes,
                                       void* trainer) = 0;
  // Within the device, on that stream.
  [[nodiscard]] virtual Status copy_behind(std::byte* to, const std::byte* from,
                                           std::uint64_t bytes, void* trainer) = 0;
  // Remembers what is queued there now.
  [[nodiscard]] virtual Status mark(void* trainer) = 0;
  // Until that is done, and all comparisons are.
  [[nodiscard]] virtual Status wait_for_trainer() = 0;
  // Brings over what was captured, in the order of the calls, as pieces of a ChangeStore (block,
  // piece); on so many threads, each piece on one. `use` may take the changes, and leave others'
  // memory in their place. Returns the numbers (TensorPair::tensor) of which changes are missing:
  // there were more than `limit_bytes` in all, or far more than ever before.
  [[nodiscard]] virtual Result<std::vector<std::uint32_t>> fetch_captured(
      unsigned threads,
      const std::function<void(std::uint32_t, std::uint64_t, PieceChanges&)>& use) = 0;
};

}  // namespace driftless
