// SPDX-License-Identifier: Apache-2.0
// Snapshot: what the receivers have, as far as this publisher rank owns it; and the undo log that
// takes a version back which did not come through.
#pragma once

#include <deque>
#include <mutex>

#include "core/delta_view.h"
#include "formats/byte_buffer.h"
#include "kernels/host_kernels.h"
#include "plugin/publish/publisher_device.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// The bytes of some tensors of a layout, in one stretch of memory of its own. Tensors begin at
// multiples of 64 bytes.
class Snapshot {
 public:
  // Zeroed, for the tensors with these indexes. kNoSpace if there is no memory. With `device` it
  // lies where that says. The layout and the device outlive it.
  [[nodiscard]] static Result<Snapshot> create(const WeightLayout& layout,
                                               std::vector<std::uint32_t> tensors,
                                               PublisherDevice* device = nullptr);

  [[nodiscard]] std::span<const std::uint32_t> tensors() const { return tensors_; }
  // Null if the tensor is not one of these.
  [[nodiscard]] std::byte* data(std::uint32_t tensor) const { return data_[tensor]; }
  [[nodiscard]] std::span<const std::byte> bytes(std::uint32_t tensor) const {
    return {data_[tensor], (*layout_)[tensor].size_bytes};
  }
  // Where it lies; of pinned memory the host's.
  [[nodiscard]] const std::shared_ptr<WeightMemory>& memory() const { return memory_; }
  [[nodiscard]] MemoryKind memory_kind() const { return memory_->kind(); }
  // All of a tensor; `from` may lie on either side.
  [[nodiscard]] Status write(std::uint32_t tensor, const std::byte* from);
  // Of each of tensors().
  [[nodiscard]] Result<std::vector<Digest>> digests(unsigned threads) const;

 private:
  const WeightLayout* layout_ = nullptr;
  std::vector<std::uint32_t> tensors_;
  std::vector<std::byte*> data_;  // per tensor of the layout
  PublisherDevice* device_ = nullptr;
  std::shared_ptr<WeightMemory> memory_;
  std::shared_ptr<std::byte> slab_;  // of all tensors
};

// The old values of what a version changed in a snapshot. O(changed). apply() may be called from
// several threads for disjoint places. Memory is kept for the next version, unless it is much more
// than this one needed.
class UndoLog {
 public:
  // Keeps the old values of `delta` in `tensor_data`, then writes the new ones over them. Returns
  // what this changes in the digest of the tensor that `key` stands for. `old_values` are those of
  // the delta's units. kNoSpace: no memory, and nothing was changed.
  [[nodiscard]] Result<Digest> apply(const HostKernels& kernels, const DigestTensorKey& key,
                                     std::byte* tensor_data, const DeltaView& delta,
                                     const std::byte* old_values);
  void roll_back(const HostKernels& kernels, Snapshot& snapshot);
  void clear();

 private:
  struct Piece {
    std::uint32_t tensor = 0;
    unsigned unit_bytes = 1;
    std::uint64_t origin = 0;
    std::uint64_t count = 0;
    ByteBuffer memory;  // `count` offsets, then as many old values
  };
  [[nodiscard]] Piece& next_piece();
  // Room for the offsets and the values of `delta`; null if there is none, the piece then empty.
  [[nodiscard]] static std::byte* start(Piece& piece, const DeltaView& delta);

  std::mutex mutex_;          // for the next two
  std::deque<Piece> pieces_;  // the first `used_` count
  std::size_t used_ = 0;
};

}  // namespace driftless
