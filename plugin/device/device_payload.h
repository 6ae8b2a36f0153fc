// SPDX-License-Identifier: Apache-2.0
// The payloads of a publisher with a GPU, and what they share. Private to plugin/device.
#pragma once

#include "plugin/device/slice_differ.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {

// Of one publisher rank, kept from version to version. Everything is queued on `stream`.
struct DeviceWork {
  DeviceOptions options;
  DeviceStream stream;
  std::shared_ptr<WeightMemory> memory;  // of the snapshot, if it lies on the device
  SliceDiffer differ;
  // What a version found: streams, workspaces, sums; until it is committed or dropped.
  DeviceArena found{MemoryKind::kDevice};
  DeviceArena host{MemoryKind::kHost};
  struct Change {
    cuda::Patch patch;  // of the snapshot
    const std::byte* values_dev = nullptr;
  };
  std::vector<Change> changes;  // to be scattered into the snapshot
  // Of write_compact_frames(): changes of a frame, what codes them, and their streams.
  DeviceBuffer joined;
  DeviceWorkspace coder, coded;

  [[nodiscard]] Result<cuda::Patch> make_patch(std::span<const cuda::Patch::Tensor> tensors,
                                               unsigned unit_bytes, cuda::PositionCoding coding,
                                               const std::byte* positions_dev) {
    return make_patch_in(found, host, tensors, unit_bytes, coding, positions_dev);
  }
  // In other memory.
  [[nodiscard]] Result<cuda::Patch> make_patch_in(DeviceArena& dev, DeviceArena& pinned,
                                                  std::span<const cuda::Patch::Tensor> tensors,
                                                  unsigned unit_bytes, cuda::PositionCoding coding,
                                                  const std::byte* positions_dev) const;
  // Starts afresh, once the device is done with what was queued.
  [[nodiscard]] Status reset();
};

// What was captured (PublisherDevice::capture()), on the device until it is fetched: positions of 4
// or 8 bytes, values, old values; beside them two slices of kSliceBytes under way.
class DeviceCapture {
 public:
  static constexpr std::uint64_t kSliceBytes = std::uint64_t{32} << 20;

  [[nodiscard]] Result<std::vector<std::uint32_t>> capture(DeviceWork& work,
                                                           std::span<const TensorPair> pairs,
                                                           std::uint64_t limit_bytes);
  [[nodiscard]] Status fetch(
      const DeviceWork& work, unsigned threads,
      const std::function<void(const DeltaView&, const std::byte* old_values)>& use);
  [[nodiscard]] std::uint64_t device_bytes() const { return found_.held_bytes(); }

 private:
  // Of one slice.
  struct Kept {
    struct Entry {
      std::uint32_t number = 0;
      cuda::StreamEntry stream;
    };
    unsigned unit_bytes = 1;
    std::vector<Entry> entries;
    std::uint64_t position_bytes = 0, value_bytes = 0;
    std::byte* positions_dev = nullptr;
    std::byte* values_dev = nullptr;
    std::byte* old_values_dev = nullptr;
    [[nodiscard]] std::uint64_t room() const {
      return device_aligned(position_bytes) + 2 * device_aligned(value_bytes);
    }
  };
  // Queues one slice after the other; `slice` is empty then.
  [[nodiscard]] Status start(DeviceWork& work, std::vector<SlicePiece>& slice, unsigned unit_bytes,
                             ValueCast cast);
  // The oldest slice under way.
  [[nodiscard]] Status absorb(DeviceWork& work);
  [[nodiscard]] Status keep(DeviceWork& work, const SliceResults& results, unsigned unit_bytes);

  [[nodiscard]] Status fetch_some(
      std::span<const Kept> some, const DeviceWork& work, unsigned threads,
      const std::function<void(const DeltaView&, const std::byte* old_values)>& use);

  DeviceArena found_{MemoryKind::kDevice};
  DeviceArena host_{MemoryKind::kHost};
  std::vector<Kept> kept_;
  std::uint64_t kept_bytes_ = 0, limit_bytes_ = 0;
  std::vector<unsigned> widths_;     // of the slices under way
  std::vector<std::uint32_t> many_;  // numbers of which more changed
  DeviceBuffer fetched_;             // pinned
};

// Changes of a block, or of a slice of it, that were found on the device: absolute positions in the
// block, and values. `sums`: what they add to the digest, in pinned memory.
struct FoundChanges {
  std::uint32_t number = 0;  // in the snapshot
  cuda::StreamEntry entry;
  const std::byte* positions_dev = nullptr;
  const std::byte* values_dev = nullptr;
  const std::uint64_t* sums = nullptr;
};
// Codes changes of one dtype in `compact` with the units of the snapshot, which lies on the device
// and is not changed yet, and writes them as frames, which are numbered from `parts` on. Those of a
// block follow each other, ascending. Memory of the device: for 2^30 units at most, or for one
// block, 1/8 byte a unit; 12 bytes and three values a change. kNoSpace if there is not as much:
// `written` of `found` are on the road then.
[[nodiscard]] Status write_compact_frames(const PayloadContext& context, DeviceWork& work,
                                          DType dtype, std::span<const FoundChanges> found,
                                          std::uint32_t& parts, PayloadFindings& findings,
                                          std::size_t& written);

// Deltas as frames or flush files.
[[nodiscard]] std::unique_ptr<RankPayload> make_device_delta_payload(const PayloadContext& context,
                                                                     DeviceWork& work);
// Whole tensors as frames, by way of a snapshot on the device.
[[nodiscard]] std::unique_ptr<RankPayload> make_device_full_payload(const PayloadContext& context,
                                                                    DeviceWork& work);
// For what needs whole tensors in host memory: brings them there, one at a time, and lets the
// processor do it. The snapshot is pinned.
[[nodiscard]] std::unique_ptr<RankPayload> make_host_copy_payload(const PayloadContext& context,
                                                                  DeviceWork& work);

}  // namespace driftless
