// SPDX-License-Identifier: Apache-2.0
// Frames of `compact` made from the changes of blocks: their table, their tiles, the digest of what
// each changes. For the publisher and for write_delta().
#pragma once

#include "core/delta_view.h"
#include "formats/frame.h"

namespace driftless {

// A block that changed: its new units, and what they were.
struct ChangedBlock {
  std::uint32_t tensor = 0;
  const TensorBlock* block = nullptr;  // null: all of the tensor
  const std::byte* units = nullptr;    // new ones: unit u of the block is unit inside.at(u) there
  BlockPlace inside;
  // Changes, ascending, with positions in the block; they own what they show.
  struct Piece {
    std::uint64_t origin = 0;
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> values, old_values;
  };
  std::vector<Piece> pieces;

  // Copies the changes. Returns how many bytes they take.
  std::uint64_t add(const DeltaView& delta, const std::byte* old_values) {
    const std::span<const std::byte> values = delta.value_bytes();
    pieces.push_back({delta.origin,
                      {delta.offsets.begin(), delta.offsets.end()},
                      {values.begin(), values.end()},
                      {old_values, old_values + values.size()}});
    return delta.offsets.size_bytes() + 2 * values.size();
  }
  // Units from `first` on, as they lie now, to where they adjoin.
  void copy_units(std::uint64_t first, std::uint64_t count, unsigned width, std::byte* out) const;
  [[nodiscard]] std::uint64_t changes() const {
    std::uint64_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.offsets.size();
    return sum;
  }
};

// Appends a frame of these blocks, which have this dtype and change, to `out`. Blocks share a
// table but for those that a table of their own makes smaller. Memory: the coded blocks, and a
// megabyte for each thread.
[[nodiscard]] Status encode_changed_blocks(const FrameContext& context, const WeightLayout& layout,
                                           DType dtype, std::span<const ChangedBlock> blocks,
                                           unsigned threads, std::vector<std::byte>& out);

}  // namespace driftless
