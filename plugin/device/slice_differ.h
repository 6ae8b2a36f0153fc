// SPDX-License-Identifier: Apache-2.0
// SliceDiffer: compares stretches of tensors on the device, a slice at a time, one ahead of who
// reads the results. What does not lie on the device is brought there first; copying the next slice
// overlaps comparing this one.
#pragma once

#include "plugin/device/device_memory.h"

namespace driftless {

// Units [first_unit, first_unit + units) of a tensor, or of a block of one, both sides.
struct SlicePiece {
  std::uint32_t number = 0;  // in the snapshot
  std::uint64_t first_unit = 0;
  std::uint64_t units = 0;
  bool huge = false;  // it has more than 2^31 units
  const std::byte* old_data = nullptr;
  const std::byte* new_data = nullptr;
  MemoryKind old_kind = MemoryKind::kDevice;
  MemoryKind new_kind = MemoryKind::kDevice;
};

// What was found in a slice; everything on the device. Valid until the next but one slice starts,
// for work that was queued before release().
struct SliceResults : cuda::DiffBatch::Results {
  std::span<const SlicePiece> pieces;
  std::span<const std::byte* const> old_dev;  // of each piece, where its old side is
  const std::byte* positions_dev = nullptr;
  const std::byte* values_dev = nullptr;
};

// One thread at a time.
class SliceDiffer {
 public:
  // Before anything else. `work`: where comparing is queued; outlives it.
  [[nodiscard]] Status open(const DeviceStream& work);

  // Queues a slice of units of one width. At most two may be under way: the older one's results
  // must have been taken.
  [[nodiscard]] Status start(std::vector<SlicePiece> pieces, unsigned unit_bytes,
                             cuda::PositionCoding coding);
  [[nodiscard]] bool pending() const { return started_ != taken_; }
  // Of the oldest slice under way; waits for it.
  [[nodiscard]] Result<SliceResults> take();
  // All work that reads the results last taken is queued.
  [[nodiscard]] Status release();
  // Forgets what is under way, once the device is done with it.
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
    DeviceEvent done;  // the comparison
    DeviceEvent read;  // what was queued before release()
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
