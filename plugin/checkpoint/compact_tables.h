// SPDX-License-Identifier: Apache-2.0
// Chooses the coding tables for the blocks of a frame in the encoding `compact`.
#pragma once

#include "plugin/checkpoint/compact_writer.h"

namespace driftless {

struct BlockTables {
  std::vector<CompactTable> tables;     // in the order in which blocks first name them
  std::vector<std::uint32_t> of_block;  // the table of each block
};

// Chooses one table for all blocks, and separate tables for blocks that save more bits with them
// than the tables take. The tables are made from all changes and from a sample of the new units,
// which serve as well as the old ones. Memory: 8 MB.
[[nodiscard]] BlockTables choose_tables(const CompactFields& fields,
                                        std::span<const ChangedBlock> blocks, unsigned threads);

}  // namespace driftless
