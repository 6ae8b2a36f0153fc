// SPDX-License-Identifier: Apache-2.0
// MaskedWrite (plugin/targets/masked_write.h) for a GPU: expands staged changes into full-shape
// tensors for a loader, and writes the changes through a map for each copy that the loader makes.
// Made by plugin/device/device_factories.h.
//
// Device memory, which is kept for the next version:
//   for each change 4 bytes for its offset, and its value; for each copy the old values, in the
//     parameter's type;
//   the full-shape tensors of a chunk;
//   256 bytes for each piece of changes and each copy.
#pragma once

#include "plugin/targets/masked_write.h"

namespace driftless {

// One thread at a time. `stream` is a cudaStream_t of the device (null: the default one). A call
// with a `stream` queues its work there and returns. The calling thread keeps its current device.
class MaskedDevice {
 public:
  struct Tensor {
    std::uint64_t units = 0;
    unsigned unit_bytes = 1;
    std::span<const DeltaPiece> pieces;
  };
  // A full-shape tensor in dense().
  struct Dense {
    std::size_t tensor = 0;      // index in stage()'s tensors
    std::uint64_t offset = 0;    // bytes; a multiple of 256
    std::uint64_t sentinel = 0;  // as many low bits as a unit has; the others are not used
  };

  virtual ~MaskedDevice() = default;
  // Copies the changes, allocates `dense_bytes` for full-shape tensors (0: none will be filled),
  // and fills those of the first chunk. Waits until all of it is done. Drops what was staged
  // before.
  [[nodiscard]] virtual Status stage(std::span<const Tensor> tensors, std::uint64_t dense_bytes,
                                     std::span<const Dense> first) = 0;
  // The memory of the full-shape tensors, until the next stage(). Null before the first.
  [[nodiscard]] virtual std::shared_ptr<std::byte> dense() const = 0;
  // Sets every unit of these tensors to the sentinel, except for the changes.
  [[nodiscard]] virtual Status fill(std::span<const Dense> dense, void* stream) = 0;
  // Writes a tensor's changes through a map, and keeps the old values. Returns a number for
  // take_back().
  [[nodiscard]] virtual Result<std::size_t> overwrite(std::size_t tensor, const WeightMap& into,
                                                      void* stream) = 0;
  // Puts back the old values of an overwrite. If overwrites overlap, take the last one back first.
  [[nodiscard]] virtual Status take_back(std::size_t write, void* stream) = 0;
};

}  // namespace driftless
