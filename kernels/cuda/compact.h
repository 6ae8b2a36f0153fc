// SPDX-License-Identifier: Apache-2.0
// `compact` (docs/formats/compact.md) in device memory: the GPU's peer of kernels/compact_ops.h,
// for blocks of one type, many at once. As in operations.h nothing waits or allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/compact.h"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

// A block of a tensor. Its positions count inside it, and are absolute (PositionCoding::kIndices).
struct CompactBlock {
  const std::byte* old_dev = nullptr;  // of the tensor
  BlockPlace place = {};               // of the block in it, with its units
  StreamEntry entry;                   // of its changes, in the streams of positions and values
  std::uint32_t table = 0;
  std::uint64_t stream_begin = 0;  // bytes; of its tiles, one after the other. To be decoded only
};

// How large a batch is.
struct CompactShape {
  CompactFields fields;
  std::uint32_t blocks = 0, tiles = 0, tables = 0, steps = 0;
  std::uint64_t changes = 0;
};

// From streams to positions, new values and old ones, as a Patch takes them.
class CompactDecode {
 public:
  // 2 KiB per tile (8 of units of one byte), 1 KiB per table, 384 bytes per list of steps; on the
  // host 200 per block, 48 per tile, and the tables.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const CompactBlock> blocks,
                                                    std::span<const CompactTable> tables);
  // `tiles`: of all blocks, one after the other, as many and as large as the entries say. kCorrupt
  // where they are not.
  [[nodiscard]] static Result<CompactDecode> make(std::span<const CompactBlock> blocks,
                                                  std::span<const CompactTable> tables,
                                                  std::span<const CompactTile> tiles,
                                                  const Workspace& workspace, Stream stream);
  // Reads `streams_dev` up to the next multiple of 4 bytes. Writes nothing past an entry's count.
  [[nodiscard]] Status run(const std::byte* streams_dev, std::byte* positions_dev,
                           std::byte* values_dev, std::byte* old_values_dev, Stream stream);
  // Once the stream has passed run(): kMismatch where a tile is not what an encoder makes of these
  // old units. What was written of such a block has no meaning.
  [[nodiscard]] Status check() const;
  // After such an error: the number of the block.
  [[nodiscard]] std::uint32_t bad_block() const;

 private:
  CompactShape shape_;
  bool cut_ = false;
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

// From the changes that a diff found to streams. Two looks at them: count() for the tables, run()
// for the streams.
class CompactEncode {
 public:
  // 64 KiB for the counts, 2 KiB per tile (8 of units of one byte), a unit and 4 bytes per change,
  // 97 KiB per table; on the host the counts, 200 bytes per block, 56 per tile, the tables.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const CompactBlock> blocks,
                                                    const CompactFields& fields,
                                                    std::uint32_t tables);
  // `positions_dev` and `values_dev` stay where they are as long as it is used. Queues counting.
  [[nodiscard]] static Result<CompactEncode> make(std::span<const CompactBlock> blocks,
                                                  const CompactFields& fields, std::uint32_t tables,
                                                  const std::byte* positions_dev,
                                                  const std::byte* values_dev,
                                                  const Workspace& workspace, Stream stream);
  // Once the stream has passed make(): what a table of all blocks is made from. Of the units a
  // sample is counted.
  [[nodiscard]] CompactCounts counts() const;
  // Queues the sizes of the streams: with tables, as many as were said at most.
  [[nodiscard]] Status size(std::span<const CompactTable> tables, Stream stream);
  // Once the stream has passed size(): the tiles of all blocks, one after the other.
  // kInvalidArgument if a table does not have one of the changes.
  [[nodiscard]] Result<std::span<const CompactTile>> tiles() const;
  // Writes the streams of all tiles, one after the other, after tiles().
  [[nodiscard]] Status run(std::byte* streams_dev, Stream stream) const;

 private:
  CompactShape shape_;
  bool cut_ = false;
  const std::byte* positions_dev_ = nullptr;
  const std::byte* values_dev_ = nullptr;
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

}  // namespace driftless::cuda
