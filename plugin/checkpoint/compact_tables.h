// SPDX-License-Identifier: Apache-2.0
// Which tables the blocks of a frame of `compact` are coded with.
#pragma once

#include "plugin/checkpoint/compact_writer.h"

namespace driftless {

struct BlockTables {
  std::vector<CompactTable> tables;     // in the order in which blocks first name them
  std::vector<std::uint32_t> of_block;  // each one's table
};

// One for all, and others for blocks that they save more bits than they take. Made from all changes
// and a sample of the units; that these are the new ones matters to no table. Memory: 8 MB.
[[nodiscard]] BlockTables choose_tables(const CompactFields& fields,
                                        std::span<const ChangedBlock> blocks, unsigned threads);

}  // namespace driftless
