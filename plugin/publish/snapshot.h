// SPDX-License-Identifier: Apache-2.0
// Snapshot: what the receivers have, as far as this publisher rank owns it; and the undo log that
// takes a version back which did not come through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/delta_view.h"
#include "core/digest.h"
#include "core/layout.h"
#include "core/memory_kind.h"
#include "core/status.h"
#include "formats/byte_buffer.h"
#include "kernels/host_kernels.h"
#include "plugin/publish/device_side.h"

namespace driftless {

// The bytes of some tensors of a layout, in one stretch of memory of its own. Tensors begin at
// multiples of 64 bytes.
class Snapshot {
 public:
  Snapshot() = default;
  Snapshot(Snapshot&& other) noexcept;
  Snapshot& operator=(Snapshot&& other) noexcept;
  ~Snapshot();
  // Zeroed, for the tensors with these indexes. kNoSpace where there is no memory. With `device` it
  // lies where that says. The layout and the device side outlive it.
  [[nodiscard]] static Result<Snapshot> create(const WeightLayout& layout,
                                               std::vector<std::uint32_t> tensors,
                                               DeviceSide* device = nullptr);

  [[nodiscard]] std::span<const std::uint32_t> tensors() const { return tensors_; }
  // Null where the tensor is not one of these.
  [[nodiscard]] std::byte* data(std::uint32_t tensor) const { return data_[tensor]; }
  [[nodiscard]] std::span<const std::byte> bytes(std::uint32_t tensor) const {
    return {data_[tensor], (*layout_)[tensor].size_bytes};
  }
  [[nodiscard]] const WeightLayout& layout() const { return *layout_; }
  [[nodiscard]] MemoryKind memory_kind() const { return kind_; }
  // All of a tensor; `from` may lie on either side.
  [[nodiscard]] Status write(std::uint32_t tensor, const std::byte* from);
  // Of each of tensors().
  [[nodiscard]] Result<std::vector<Digest>> digests(const HostKernels& kernels,
                                                    unsigned threads) const;

 private:
  const WeightLayout* layout_ = nullptr;
  std::vector<std::uint32_t> tensors_;
  std::vector<std::byte*> data_;  // per tensor of the layout
  std::byte* memory_ = nullptr;
  std::uint64_t memory_bytes_ = 0;
  DeviceSide* device_ = nullptr;
  std::shared_ptr<std::byte> device_memory_;  // memory_, where the device side gave it
  MemoryKind kind_ = MemoryKind::kHost;
};

// A DeltaView that owns what it shows.
struct StoredDelta {
  std::uint32_t tensor = 0;
  unsigned unit_bytes = 1;
  std::uint64_t origin = 0;
  std::vector<std::uint32_t> offsets;
  std::vector<std::byte> values;

  [[nodiscard]] DeltaView view() const {
    return {tensor, unit_bytes, origin, offsets, values.data()};
  }
};

// The old values of what a version changed in a snapshot. O(changed). apply() may be called from
// several threads for disjoint places. Memory is kept for the next version, unless it is much more
// than this one needed.
class UndoLog {
 public:
  // Keeps the old values of `delta` in `tensor_data`, then writes the new ones over them. Returns
  // what this changes in the digest of the tensor that `key` stands for. `old_values` are those of
  // the delta's units; where it is null they are read from the tensor. kNoSpace: no memory, and
  // nothing was changed.
  [[nodiscard]] Result<Digest> apply(const HostKernels& kernels, const DigestTensorKey& key,
                                     std::byte* tensor_data, const DeltaView& delta,
                                     const std::byte* old_values = nullptr);
  void roll_back(const HostKernels& kernels, Snapshot& snapshot);
  void clear();
  [[nodiscard]] bool empty() const { return used_ == 0; }

 private:
  struct Piece {
    std::uint32_t tensor = 0;
    unsigned unit_bytes = 1;
    std::uint64_t origin = 0;
    std::uint64_t count = 0;
    ByteBuffer memory;  // `count` offsets, then as many old values
  };
  [[nodiscard]] Piece& next_piece();
  // Room for the offsets and the values of `delta`; null where there is none, the piece then empty.
  [[nodiscard]] static std::byte* start(Piece& piece, const DeltaView& delta);

  std::mutex mutex_;          // for the next two
  std::deque<Piece> pieces_;  // the first `used_` count
  std::size_t used_ = 0;
};

}  // namespace driftless
