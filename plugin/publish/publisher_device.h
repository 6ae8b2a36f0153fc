// SPDX-License-Identifier: Apache-2.0
// PublisherDevice: what a publisher uses a GPU for. Null if weights lie in host memory. Made by
// make_publisher_device() (plugin/device/device_factories.h, library driftless_device), so that
// only programs that use it link CUDA. It belongs to one publisher rank; one thread at a time.
//
// The snapshot lies on the device, or in pinned host memory and is copied over for the comparison,
// slice by slice. It changes only when a version is committed, by the changes of that version.
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

// Where a publisher keeps its copy of the receivers' weights.
enum class SnapshotPlace : unsigned char { kHost, kPinned, kDevice, kNone };
[[nodiscard]] std::string_view to_string(SnapshotPlace place);  // "host", ..., "none"
[[nodiscard]] Result<SnapshotPlace> parse_snapshot(std::string_view name);

struct DeviceOptions {
  SnapshotPlace snapshot = SnapshotPlace::kPinned;  // not kHost
  int device = 0;
  // The bytes of one side that are compared at a time. Bounds the device memory beside the tensors
  // (docs/operate/gpu.md).
  std::uint64_t slice_bytes = std::uint64_t{256} << 20;
};

// A box of a bfloat16 matrix on the GPU, as Quantizer::part takes it.
struct DeviceMatrix {
  MatrixPart part;
  const std::byte* weights = nullptr;
  std::span<std::uint16_t> largest;  // one for each block that the box touches; in host memory
  const std::byte* codes = nullptr;  // on the GPU; set by quantize()
};

// Contiguous groups of bfloat16 weights on the GPU, as Quantizer::groups takes them.
struct DeviceGroups {
  std::uint64_t groups = 0;
  const std::byte* weights = nullptr;
  const std::byte* packed = nullptr;  // on the GPU; set by quantize_groups()
  const std::byte* scales = nullptr;  // likewise
};

class PublisherDevice {
 public:
  virtual ~PublisherDevice() = default;
  [[nodiscard]] virtual const DeviceOptions& options() const = 0;
  [[nodiscard]] bool on_device() const { return options().snapshot == SnapshotPlace::kDevice; }
  // Device memory that the last version took beside the snapshot.
  [[nodiscard]] virtual std::uint64_t device_bytes() const = 0;

  // Memory for a snapshot, zeroed.
  [[nodiscard]] virtual Result<std::shared_ptr<std::byte>> allocate(std::uint64_t bytes) = 0;
  // Either side may be host or device. The copy is done when the call returns.
  [[nodiscard]] virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  // The GPU's memory, even if the snapshot lies in pinned memory.
  [[nodiscard]] virtual std::shared_ptr<WeightMemory> memory() const = 0;

  // A payload that compares on the device. kUnsupported if the layout needs the snapshot in host
  // memory.
  [[nodiscard]] virtual Result<std::unique_ptr<RankPayload>> make_payload(
      const PayloadContext& context) = 0;
  // Measures boxes where they lie, and quantizes them if `coded`. Done when the call returns; the
  // codes stay until the next call.
  [[nodiscard]] virtual Status quantize(QuantizeRule rule, std::span<DeviceMatrix> boxes,
                                        bool coded) = 0;
  // Makes INT4 groups of `group` weights. Codes and scales stay until the next call of this
  // function or of quantize().
  [[nodiscard]] virtual Status quantize_groups(unsigned group, std::span<DeviceGroups> boxes) = 0;
  // Writes the last payload's changes into the snapshot: queued on a stream of its own.
  [[nodiscard]] virtual Status commit() = 0;
  // Drops the last payload's changes.
  virtual void abort() = 0;

  // The calls below are for publishers without a snapshot (LiveStore). `trainer` is the stream on
  // which the weights are written (a cudaStream_t; null: the default one). capture() queues the
  // comparison on that stream, without copying either side: work that is queued there later may
  // overwrite both. The changes stay on the device until fetch_captured().
  [[nodiscard]] virtual Status capture(std::span<const TensorPair> pairs, std::uint64_t limit_bytes,
                                       void* trainer) = 0;
  // Copies within the device, on that stream.
  [[nodiscard]] virtual Status copy_on_stream(std::byte* to, const std::byte* from,
                                              std::uint64_t bytes, void* trainer) = 0;
  // Marks what is queued on that stream now.
  [[nodiscard]] virtual Status mark(void* trainer) = 0;
  // Waits until the marked work and all comparisons are done.
  [[nodiscard]] virtual Status wait_for_trainer() = 0;
  // Copies the captured changes to the host, in the order of the capture() calls, as pieces of a
  // ChangeStore (block, piece). Uses `threads` threads; each piece is handled by one thread. `use`
  // may take the changes and leave other memory in their place. Returns the block numbers
  // (TensorPair::tensor) whose changes are missing: all changes together exceeded `limit_bytes`, or
  // there were far more than ever before.
  [[nodiscard]] virtual Result<std::vector<std::uint32_t>> fetch_captured(
      unsigned threads,
      const std::function<void(std::uint32_t, std::uint64_t, PieceChanges&)>& use) = 0;
};

}  // namespace driftless
