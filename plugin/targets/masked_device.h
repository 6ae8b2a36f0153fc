// SPDX-License-Identifier: Apache-2.0
// Masked overwrites in the memory of a GPU: changes that lie there since staging are made into
// full-shape tensors for a loader, and written through the map of each of its copies. The peer of
// MaskedWrite (plugin/targets/masked_write.h); made by plugin/device/device_factories.h.
//
// Device memory, held for the next version once it was taken: per change 4 bytes, its width, and
// its width in the parameter for what was there before; the full-shape tensors of a chunk; 256
// bytes for each piece of changes and each copy.
#pragma once

#include "plugin/targets/masked_write.h"

namespace driftless {

// One thread at a time. `stream` is a cudaStream_t of the device (null: the default one); calls
// that take one queue their work there and return. The calling thread keeps its current device.
class MaskedDevice {
 public:
  struct Tensor {
    std::uint64_t units = 0;
    unsigned unit_bytes = 1;
    std::span<const DeltaPiece> pieces;
  };
  // A full-shape tensor in the memory for them.
  struct Dense {
    std::size_t tensor = 0;      // as it was staged
    std::uint64_t offset = 0;    // bytes; a multiple of 256
    std::uint64_t sentinel = 0;  // its low bits, as many as a unit has
  };

  virtual ~MaskedDevice() = default;
  // Takes the changes over, makes room for full-shape tensors of `dense_bytes` together (0: none is
  // to be filled), and fills those of the first chunk. Waits for all of it. What was staged before
  // is forgotten.
  [[nodiscard]] virtual Status stage(std::span<const Tensor> tensors, std::uint64_t dense_bytes,
                                     std::span<const Dense> first) = 0;
  // Where the full-shape tensors are, until the next stage(). Null if none ever was.
  [[nodiscard]] virtual std::shared_ptr<std::byte> dense() const = 0;
  // Each becomes the sentinel, but for its changes.
  [[nodiscard]] virtual Status fill(std::span<const Dense> dense, void* stream) = 0;
  // The changes of a tensor that the map has, into its target; what was there is kept. A number for
  // take_back().
  [[nodiscard]] virtual Result<std::size_t> overwrite(std::size_t tensor, const WeightMap& into,
                                                      void* stream) = 0;
  // Puts back what an overwrite found; the last one first, where they meet.
  [[nodiscard]] virtual Status take_back(std::size_t write, void* stream) = 0;
};

}  // namespace driftless
