// SPDX-License-Identifier: Apache-2.0
// Single operations on tensors in device memory, for callers with a stream of their own. Library
// driftless_device; includes no CUDA header.
//
// A call queues its work on the stream (cudaStream_t; null: the default one), behind what is
// already queued there. It returns when the work is done, because it then frees its workspace. The
// device of the tensors must be current (check_device()). For batches without waits use
// kernels/cuda/operations.h.
#pragma once

#include "core/digest.h"

namespace driftless {

struct DeviceUnits {
  std::byte* data_dev = nullptr;  // aligned to the unit
  std::uint64_t units = 0;
  unsigned unit_bytes = 1;  // 1, 2, 4 or 8
};
// Absolute and ascending.
struct DevicePositions {
  const std::byte* data_dev = nullptr;
  std::uint64_t count = 0;
  unsigned bytes = 8;  // per position: 4 or 8
};
struct DeviceChanges {
  std::uint64_t count = 0;
  std::shared_ptr<std::byte> positions_dev;  // 8 bytes each
  std::shared_ptr<std::byte> values_dev;
};

// Device memory that is freed with the last reference. Never null.
[[nodiscard]] Result<std::shared_ptr<std::byte>> allocate_on_device(std::uint64_t bytes);
// kInvalidArgument if the bytes are not memory of this device (or managed memory).
[[nodiscard]] Status check_device_memory(const void* data, int device);

// kCorrupt, with nothing written, if positions do not ascend or lie past the end.
[[nodiscard]] Status gather_on_device(const DeviceUnits& from, const DevicePositions& positions,
                                      std::byte* values_dev, void* stream);
[[nodiscard]] Status scatter_on_device(const DeviceUnits& to, const DevicePositions& positions,
                                       const std::byte* values_dev, void* stream);
// Returns how many units were written.
[[nodiscard]] Result<std::uint64_t> masked_overwrite_on_device(const DeviceUnits& to,
                                                               const std::byte* source_dev,
                                                               std::uint64_t sentinel,
                                                               void* stream);
[[nodiscard]] Result<DeviceChanges> diff_on_device(const DeviceUnits& before,
                                                   const std::byte* after_dev, void* stream);
[[nodiscard]] Result<Digest> digest_on_device(std::string_view tensor,
                                              std::span<const std::byte> bytes_dev, void* stream);

}  // namespace driftless
