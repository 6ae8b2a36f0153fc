// SPDX-License-Identifier: Apache-2.0
// The bytes of `compact` besides its coded tiles: the tables of a frame, and the index of a block's
// tiles. docs/formats/compact.md specifies them. Readers refuse every form but the canonical one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/compact.h"
#include "core/digest.h"
#include "core/status.h"

namespace driftless {

inline constexpr std::size_t kMaxCompactTables = 256;  // of a frame
inline constexpr std::size_t kCompactIndexHeadBytes = 24;

void append_compact_table(const CompactTable& table, std::vector<std::byte>& out);
// Reads one table from the beginning of `bytes`, and advances `bytes` past it.
[[nodiscard]] Result<CompactTable> read_compact_table(const CompactFields& fields,
                                                      std::span<const std::byte>& bytes);

// The content of a block's positions stream.
struct CompactIndex {
  Digest change;  // digest(after) - digest(before)
  std::vector<CompactTile> tiles;
};
void append_compact_index(const CompactIndex& index, std::vector<std::byte>& out);
// Reads the index of a block of `units` units that has `changes` changes in `stream_bytes` of
// tiles. Refuses an index whose sums differ from these, and a tile with more changes than bits.
// Memory grows with `units`.
[[nodiscard]] Result<CompactIndex> read_compact_index(const CompactFields& fields,
                                                      std::span<const std::byte> bytes,
                                                      std::uint64_t units, std::uint64_t changes,
                                                      std::uint64_t stream_bytes);

}  // namespace driftless
