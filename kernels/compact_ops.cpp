// SPDX-License-Identifier: Apache-2.0
#include "kernels/compact_ops.h"

#include <algorithm>

#include "kernels/compact_model.h"

namespace driftless {
namespace {

using namespace compact;

constexpr std::uint64_t kSampleRun = 64, kSampleEvery = 8, kSampleFrom = 65536;

}  // namespace

void count_compact_units(const CompactFields& fields, const void* units, std::uint64_t count,
                         CompactCounts& counts) {
  const std::uint64_t every = count >= kSampleFrom ? kSampleEvery : 1;
  with_unit(fields, [&]<typename Unit>(Unit) {
    for (std::uint64_t run = 0; run < count; run += kSampleRun * every) {
      const std::uint64_t end = std::min(count, run + kSampleRun);
      for (std::uint64_t i = run; i < end; ++i) {
        counts.units[fields.class_of(load<Unit>(units, i))] += every;
      }
    }
  });
}

void count_compact_changes(const CompactFields& fields, const void* old_values,
                           const void* new_values, std::uint64_t count, CompactCounts& counts) {
  with_unit(fields, [&]<typename Unit>(Unit) {
    for (std::uint64_t k = 0; k < count; ++k) {
      const std::uint32_t from = load<Unit>(old_values, k);
      const unsigned c = fields.class_of(from);
      ++counts.changes[c];
      ++counts.steps[c][step_between(fields, from, load<Unit>(new_values, k)).symbol];
    }
  });
}

Status encode_compact(const HostKernels& kernels, const CompactTable& table, const DeltaView& delta,
                      const void* old_units, std::uint64_t units, CompactStreams& out) {
  const unsigned width = table.fields.unit_bytes;
  const std::uint32_t tile_units = table.fields.tile_units();
  std::vector<std::uint32_t> offsets;
  std::size_t k = 0;
  for (std::uint64_t at = 0; at < units; at += tile_units) {
    const auto size = static_cast<std::uint32_t>(std::min<std::uint64_t>(tile_units, units - at));
    const std::size_t first = k;
    offsets.clear();
    for (; k < delta.offsets.size() && delta.offsets[k] < at + size; ++k) {
      offsets.push_back(static_cast<std::uint32_t>(delta.offsets[k] - at));
    }
    const auto count = static_cast<std::uint32_t>(k - first);
    const std::size_t begin = out.bytes.size();
    out.bytes.resize(begin + max_compact_bytes(table.fields, count));
    const std::uint32_t bytes = kernels.compact_encode(
        table, static_cast<const std::byte*>(old_units) + at * width, size, offsets.data(), count,
        delta.values + first * width, out.bytes.data() + begin);
    if (bytes == kCompactNotInTable) {
      return error(StatusCode::kInvalidArgument, "tensor ", delta.tensor, ": a change in the ",
                   size, " units from ", delta.origin + at, " is not in the table of its encoding");
    }
    out.bytes.resize(begin + bytes);
    out.tiles.push_back({count, bytes});
  }
  return {};
}

Status decode_compact(const HostKernels& kernels, const CompactTable& table, const void* old_units,
                      std::uint64_t units, std::span<const CompactTile> tiles,
                      std::span<const std::byte> bytes, CompactChanges& out) {
  const unsigned width = table.fields.unit_bytes;
  std::uint64_t changes = 0;
  for (const CompactTile& tile : tiles) changes += tile.changes;
  out.offsets.resize(changes);
  out.values.resize(changes * width);
  out.old_values.resize(changes * width);
  std::uint64_t k = 0, at = 0;
  for (const CompactTile& tile : tiles) {
    const auto size =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(table.fields.tile_units(), units - at));
    const bool good =
        tile.changes <= size && tile.bytes <= bytes.size() &&
        kernels.compact_decode(table, static_cast<const std::byte*>(old_units) + at * width, size,
                               bytes.first(tile.bytes), tile.changes, out.offsets.data() + k,
                               out.values.data() + k * width, out.old_values.data() + k * width);
    if (!good) {
      return error(StatusCode::kMismatch, "the ", tile.changes, " changes of the ", size,
                   " units from ", at,
                   " do not decode with the weights that are here: these are "
                   "not the version's base, or the delta is damaged");
    }
    for (std::uint32_t i = 0; i < tile.changes; ++i) {
      out.offsets[k + i] += static_cast<std::uint32_t>(at);
    }
    bytes = bytes.subspan(tile.bytes);
    k += tile.changes;
    at += size;
  }
  return {};
}

}  // namespace driftless
