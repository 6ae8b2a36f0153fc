// SPDX-License-Identifier: Apache-2.0
// `compact` (docs/formats/compact.md) in device memory: the GPU version of kernels/compact_ops.h,
// for many blocks of one type at once. As in operations.h, nothing waits or allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/compact.h"
#include "kernels/cuda/operations.h"

namespace driftless::cuda {

// A block of a tensor. Its positions count inside it and are absolute (PositionCoding::kIndices).
struct CompactBlock {
  const std::byte* old_dev = nullptr;  // of the tensor
  BlockPlace place = {};               // of the block in it, with its units
  StreamEntry entry;                   // its changes, in the streams of positions and values
  std::uint32_t table = 0;
  std::uint64_t stream_begin = 0;  // bytes; start of its tiles. For decoding only
};

// The size of a batch.
struct CompactShape {
  CompactFields fields;
  std::uint32_t blocks = 0, tiles = 0, tables = 0, steps = 0;
  std::uint64_t changes = 0;
};

// Decodes streams into positions, new values and old values, in the form that a Patch takes.
class CompactDecode {
 public:
  // Device: 2 KiB per tile (8 KiB for units of one byte), 1 KiB per table, 384 bytes per list of
  // steps. Host: 200 bytes per block, 48 per tile, and the tables.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const CompactBlock> blocks,
                                                    std::span<const CompactTable> tables);
  // `tiles` holds the tiles of all blocks, one block after the other. kCorrupt if their number or
  // sizes differ from the entries.
  [[nodiscard]] static Result<CompactDecode> make(std::span<const CompactBlock> blocks,
                                                  std::span<const CompactTable> tables,
                                                  std::span<const CompactTile> tiles,
                                                  const Workspace& workspace, Stream stream);
  // Reads `streams_dev` up to the next multiple of 4 bytes. Writes nothing past the count of an
  // entry.
  [[nodiscard]] Status run(const std::byte* streams_dev, std::byte* positions_dev,
                           std::byte* values_dev, std::byte* old_values_dev, Stream stream);
  // Call it once the stream has passed run(). kMismatch if an encoder would not make a tile from
  // these old units; the output of its block is then undefined.
  [[nodiscard]] Status check() const;
  // The number of the block, after such an error.
  [[nodiscard]] std::uint32_t bad_block() const;

 private:
  CompactShape shape_;
  bool cut_ = false;
  std::byte* dev_ = nullptr;
  std::byte* host_ = nullptr;
};

// Encodes the changes that a diff found. Reads them twice: make() counts for the tables, run()
// writes the streams.
class CompactEncode {
 public:
  // Device: 64 KiB for the counts, 2 KiB per tile (8 KiB for units of one byte), a unit and 4 bytes
  // per change, 97 KiB per table. Host: the counts, 200 bytes per block, 56 per tile, the tables.
  [[nodiscard]] static WorkspaceSize workspace_size(std::span<const CompactBlock> blocks,
                                                    const CompactFields& fields,
                                                    std::uint32_t tables);
  // `positions_dev` and `values_dev` must stay valid as long as the object is used. Queues the
  // counting.
  [[nodiscard]] static Result<CompactEncode> make(std::span<const CompactBlock> blocks,
                                                  const CompactFields& fields, std::uint32_t tables,
                                                  const std::byte* positions_dev,
                                                  const std::byte* values_dev,
                                                  const Workspace& workspace, Stream stream);
  // Call it once the stream has passed make(). The counts from which a table for all blocks is
  // made; units are counted from a sample.
  [[nodiscard]] CompactCounts counts() const;
  // Queues the computation of the streams' sizes. `tables`: as many as make() was given.
  [[nodiscard]] Status size(std::span<const CompactTable> tables, Stream stream);
  // Call it once the stream has passed size(). The tiles of all blocks, one after the other.
  // kInvalidArgument if a table lacks the class or the step of a change.
  [[nodiscard]] Result<std::span<const CompactTile>> tiles() const;
  // Queues writing the streams of all tiles, one after the other. Call it after tiles().
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
