// SPDX-License-Identifier: Apache-2.0
// `compact` over stretches of tensors on the host: counting for the tables, and coding of
// consecutive tiles. A stretch begins at a multiple of the tile size in its block. Calls on
// different stretches may run at the same time.
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

// Counts the classes of `units`. If there are many, counts only every eighth run of 64 units, with
// weight 8.
void count_compact_units(const CompactFields& fields, const void* units, std::uint64_t count,
                         CompactCounts& counts);
// Counts the classes and steps of changes, from old values to new ones. The caller should pass all
// changes, not a sample.
void count_compact_changes(const CompactFields& fields, const void* old_values,
                           const void* new_values, std::uint64_t count, CompactCounts& counts);

struct CompactStreams {
  std::vector<CompactTile> tiles;
  std::vector<std::byte> bytes;  // of the tiles, one after the other
};

// Appends the tiles of a stretch of `units` old units that begins at delta.origin. kInvalidArgument
// if the table lacks the class or the step of a change.
[[nodiscard]] Status encode_compact(const HostKernels& kernels, const CompactTable& table,
                                    const DeltaView& delta, const void* old_units,
                                    std::uint64_t units, CompactStreams& out);

// The decoded changes of a stretch.
struct CompactChanges {
  std::vector<std::uint32_t> offsets;  // from the stretch's first unit
  std::vector<std::byte> values, old_values;
};
// Replaces `out`. `tiles` are the tiles of `units` units, fewer than 2^32, and fill `bytes`.
// kMismatch if an encoder would not make such a tile from these old units: the encoder had other
// old units, or the tile is damaged.
[[nodiscard]] Status decode_compact(const HostKernels& kernels, const CompactTable& table,
                                    const void* old_units, std::uint64_t units,
                                    std::span<const CompactTile> tiles,
                                    std::span<const std::byte> bytes, CompactChanges& out);

}  // namespace driftless
