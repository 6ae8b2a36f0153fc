// SPDX-License-Identifier: Apache-2.0
// Pieces of changes in the memory of a GPU: where the offsets and values of each lie.
#pragma once

#include "plugin/device/device_memory.h"
#include "plugin/targets/weight_memory.h"

namespace driftless {

// What the pieces point to outlives it.
class PiecePlaces {
 public:
  // The number of the piece. Values have `value_bytes` each.
  std::size_t add(const DeltaPiece& piece, unsigned value_bytes);
  void clear();

  [[nodiscard]] std::uint64_t offset_bytes() const {
    return offset_entries_ * sizeof(std::uint32_t);
  }
  [[nodiscard]] std::uint64_t value_bytes() const { return value_bytes_; }
  // Queues it on the stream.
  [[nodiscard]] Status upload(std::byte* offsets_dev, std::byte* values_dev, Uploader& uploader,
                              const DeviceStream& stream) const;

  // The changes of a piece that may lie in a map, for a patch over the two uploads.
  [[nodiscard]] cuda::StridedPatch::Part part(std::size_t number, const ChangePart& found,
                                              std::uint64_t old_begin) const;

 private:
  struct Place {
    const DeltaPiece* piece = nullptr;
    unsigned value_bytes = 1;
    std::uint64_t offset_begin = 0;  // entries
    std::uint64_t value_begin = 0;   // bytes
  };
  std::vector<Place> places_;
  std::uint64_t offset_entries_ = 0, value_bytes_ = 0;
};

// Uses every kernel of such patches once: the first use of one stops the GPU for milliseconds,
// which is for when nobody generates yet.
[[nodiscard]] Status load_patch_kernels(const DeviceStream& stream);

}  // namespace driftless
