// SPDX-License-Identifier: Apache-2.0
// SliceDiffer: compares ranges of tensors on the device, slice by slice, one slice ahead of the
// reader. Data that is not on the device is copied there first; copying the next slice overlaps
// comparing this one.
#pragma once

#include "plugin/device/device_memory.h"

namespace driftless {

// Units [first_unit, first_unit + units) of a tensor, or of a block of one, on both sides.
struct SlicePiece {
  std::uint32_t number = 0;  // in the snapshot
  std::uint64_t first_unit = 0;
  std::uint64_t units = 0;
  bool huge = false;  // the tensor has more than 2^31 units
  const std::byte* old_data = nullptr;
  const std::byte* new_data = nullptr;
  MemoryKind old_kind = MemoryKind::kDevice;
  MemoryKind new_kind = MemoryKind::kDevice;
};

// The changes found in a slice, all in device memory. Only work that is queued before release() may
// use them. They stay valid until the second slice after this one starts.
struct SliceResults : cuda::DiffBatch::Results {
  std::span<const SlicePiece> pieces;
  std::span<const std::byte* const> old_dev;  // the old side of each piece
  const std::byte* positions_dev = nullptr;
  const std::byte* values_dev = nullptr;
};

// One thread at a time.
class SliceDiffer {
 public:
  // Call it first. `work`: the stream on which comparisons are queued; it outlives this.
  [[nodiscard]] Status open(const DeviceStream& work);

  // Queues a slice of units of one width. At most two may be under way: take the older one's
  // results first.
  [[nodiscard]] Status start(std::vector<SlicePiece> pieces, unsigned unit_bytes,
                             cuda::PositionCoding coding);
  [[nodiscard]] bool pending() const { return started_ != taken_; }
  // The results of the oldest slice under way; waits for it.
  [[nodiscard]] Result<SliceResults> take();
  // Call it once all work that reads the last taken results is queued.
  [[nodiscard]] Status release();
  // Drops what is under way, after the device has finished it.
  void drop();

  [[nodiscard]] std::uint64_t device_bytes() const;

 private:
  struct Lane {
    std::vector<SlicePiece> pieces;
    std::vector<const std::byte*> old_dev;
    std::vector<cuda::DiffBatch::Tensor> tensors;
    unsigned unit_bytes = 1;
    cuda::PositionCoding coding = cuda::PositionCoding::kGaps;
    DeviceBuffer staged, positions, values;
    DeviceWorkspace work;
    std::optional<cuda::DiffBatch> batch;
    DeviceEvent done;  // after the comparison
    DeviceEvent read;  // after the work that was queued before release()
  };

  [[nodiscard]] Status stage(Lane& lane);
  [[nodiscard]] Status compare(Lane& lane, std::uint64_t max_changed);

  const DeviceStream* work_ = nullptr;
  DeviceStream copies_;
  DeviceEvent copied_;
  std::array<Lane, 2> lanes_;
  std::uint64_t started_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace driftless
