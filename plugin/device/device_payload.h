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
  std::shared_ptr<WeightMemory> memory;
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
                                               const std::byte* positions_dev);
  // Starts afresh, once the device is done with what was queued.
  [[nodiscard]] Status reset();
};

// Changes of a block, or of a slice of it, that were found on the device: absolute positions in the
// block, and values. `sums`: what they add to the digest, in pinned memory.
struct SliceChanges {
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
                                          DType dtype, std::span<const SliceChanges> found,
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
