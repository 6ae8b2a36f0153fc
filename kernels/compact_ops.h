// SPDX-License-Identifier: Apache-2.0
// `compact` over stretches of tensors on the host: what its tables are made from, and their tiles
// one after the other. Stretches begin at a multiple of their tiles' units in their block; calls on
// different ones may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/compact.h"
#include "core/delta_view.h"
#include "core/status.h"
#include "kernels/host_kernels.h"

namespace driftless {

// Adds the classes of `units`: of every eighth 64 of them, eightfold, if there are many. Those of
// changes are best added from all of them.
void count_compact_units(const CompactFields& fields, const void* units, std::uint64_t count,
                         CompactCounts& counts);
// The same of changes, old values to new ones.
void count_compact_changes(const CompactFields& fields, const void* old_values,
                           const void* new_values, std::uint64_t count, CompactCounts& counts);

struct CompactStreams {
  std::vector<CompactTile> tiles;
  std::vector<std::byte> bytes;  // of the tiles, one after the other
};

// Appends the tiles of a stretch of `units` old units from delta.origin on. kInvalidArgument if the
// table does not have one of the changes.
[[nodiscard]] Status encode_compact(const HostKernels& kernels, const CompactTable& table,
                                    const DeltaView& delta, const void* old_units,
                                    std::uint64_t units, CompactStreams& out);

// The changes of a stretch, decoded.
struct CompactChanges {
  std::vector<std::uint32_t> offsets;  // from the stretch's first unit
  std::vector<std::byte> values, old_values;
};
// Replaces `out`. `tiles` are those of `units` units, fewer than 2^32, and fill `bytes`. kMismatch
// if a tile is not what an encoder makes of these old units: they are other ones than the encoder
// had, or the tile is damaged.
[[nodiscard]] Status decode_compact(const HostKernels& kernels, const CompactTable& table,
                                    const void* old_units, std::uint64_t units,
                                    std::span<const CompactTile> tiles,
                                    std::span<const std::byte> bytes, CompactChanges& out);

}  // namespace driftless
