// SPDX-License-Identifier: Apache-2.0
// Makes frames of the encoding `compact` from changed blocks: their table, their tiles, and the
// digest of each block's change. Used by the publisher and write_delta().
#pragma once

#include "core/delta_view.h"
#include "formats/frame.h"

namespace driftless {

// A changed block: its new units and the old ones.
struct ChangedBlock {
  std::uint32_t tensor = 0;
  const TensorBlock* block = nullptr;  // null: all of the tensor
  const std::byte* units = nullptr;  // the new units: unit u of the block is at units[inside.at(u)]
  BlockPlace inside;
  // Changes in ascending order, with positions in the block. A piece owns its values.
  struct Piece {
    std::uint64_t origin = 0;
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> values, old_values;
  };
  std::vector<Piece> pieces;

  // Copies the changes and returns their size in bytes.
  std::uint64_t add(const DeltaView& delta, const std::byte* old_values) {
    const std::span<const std::byte> values = delta.value_bytes();
    pieces.push_back({delta.origin,
                      {delta.offsets.begin(), delta.offsets.end()},
                      {values.begin(), values.end()},
                      {old_values, old_values + values.size()}});
    return delta.offsets.size_bytes() + 2 * values.size();
  }
  // Copies `count` units of the block from unit `first` on, in their present state, to `out`
  // without gaps.
  void copy_units(std::uint64_t first, std::uint64_t count, unsigned width, std::byte* out) const;
  [[nodiscard]] std::uint64_t changes() const {
    std::uint64_t sum = 0;
    for (const Piece& piece : pieces) sum += piece.offsets.size();
    return sum;
  }
};

// Appends to `out` a frame of these blocks. Each has this dtype and at least one change. They share
// a table, except those for which a separate table saves space. Memory: the coded blocks, and a
// megabyte for each thread.
[[nodiscard]] Status encode_changed_blocks(const FrameContext& context, const WeightLayout& layout,
                                           DType dtype, std::span<const ChangedBlock> blocks,
                                           unsigned threads, std::vector<std::byte>& out);

}  // namespace driftless
