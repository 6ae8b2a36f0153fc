// SPDX-License-Identifier: Apache-2.0
// The payloads of a publisher with a GPU, and the state they share. Private to plugin/device.
#pragma once

#include "plugin/device/slice_differ.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {

// The state of one publisher rank, kept from version to version. All work is queued on `stream`.
struct DeviceWork {
  DeviceOptions options;
  DeviceStream stream;
  std::shared_ptr<WeightMemory> memory;
  SliceDiffer differ;
  // The findings of a version (streams, workspaces, sums), until it is committed or dropped.
  DeviceArena found{MemoryKind::kDevice};
  DeviceArena host{MemoryKind::kHost};
  struct Change {
    cuda::Patch patch;  // for the snapshot
    const std::byte* values_dev = nullptr;
  };
  std::vector<Change> changes;  // to be written into the snapshot
  // Used by write_compact_frames(): the changes of a frame, their coding tables, and their streams.
  DeviceBuffer joined;
  DeviceWorkspace coder, coded;

  [[nodiscard]] Result<cuda::Patch> make_patch(std::span<const cuda::Patch::Tensor> tensors,
                                               unsigned unit_bytes, cuda::PositionCoding coding,
                                               const std::byte* positions_dev);
  // Starts afresh, after the device has finished all queued work.
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
// Codes changes of one dtype in `compact`, and writes them as frames numbered from `parts` on.
// Codes are relative to the units of the snapshot, which lies on the device and must not be changed
// yet. The changes of a block must be adjacent and ascending. Device memory, for at most 2^30 units
// or one block at a time: 1/8 byte per unit; 12 bytes and three values per change. kNoSpace if
// there is less: then the first `written` of `found` are on the road.
[[nodiscard]] Status write_compact_frames(const PayloadContext& context, DeviceWork& work,
                                          DType dtype, std::span<const SliceChanges> found,
                                          std::uint32_t& parts, PayloadFindings& findings,
                                          std::size_t& written);

// Writes deltas as frames or flush files.
[[nodiscard]] std::unique_ptr<RankPayload> make_device_delta_payload(const PayloadContext& context,
                                                                     DeviceWork& work);
// Writes whole tensors as frames, by way of a snapshot on the device.
[[nodiscard]] std::unique_ptr<RankPayload> make_device_full_payload(const PayloadContext& context,
                                                                    DeviceWork& work);
// For formats that need whole tensors in host memory: copies them there one at a time, and encodes
// on the CPU. The snapshot is pinned.
[[nodiscard]] std::unique_ptr<RankPayload> make_host_copy_payload(const PayloadContext& context,
                                                                  DeviceWork& work);

}  // namespace driftless
