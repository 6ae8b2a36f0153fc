// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/compact_tables.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/parallel.h"
#include "formats/compact_table.h"
#include "kernels/compact_ops.h"

namespace driftless {
namespace {

// A separate table does not pay for a block with fewer changes. Such blocks are counted together,
// because the counts of one block take 127 KB.
constexpr std::uint64_t kLeastChanges = 16384;
constexpr std::size_t kMostTables = 63;

// Units are counted in stretches of kSampledUnits. A block with at least kSampledFrom stretches has
// only each kSampledEvery-th one counted.
constexpr std::uint64_t kSampledUnits = 8 * std::uint64_t{kCompactTileUnits};
constexpr std::uint64_t kSampledEvery = 4, kSampledFrom = 16;  // stretches

void count_block(const CompactFields& fields, const ChangedBlock& block, CompactCounts& counts) {
  const unsigned width = fields.unit_bytes;
  const std::uint64_t units = block.inside.units;
  const std::uint64_t every = units >= kSampledFrom * kSampledUnits ? kSampledEvery : 1;
  const auto sampled = std::make_unique<CompactCounts>();
  std::vector<std::byte> scratch;
  for (std::uint64_t first = 0; first < units; first += every * kSampledUnits) {
    const std::uint64_t count = std::min(kSampledUnits, units - first);
    const std::byte* at = block.units + block.inside.at(first) * width;
    if (!block.inside.contiguous()) {
      scratch.resize(count * width);
      block.copy_units(first, count, width, scratch.data());
      at = scratch.data();
    }
    count_compact_units(fields, at, count, *sampled);
  }
  for (std::size_t c = 0; c < kCompactClasses; ++c) counts.units[c] += every * sampled->units[c];
  for (const ChangedBlock::Piece& piece : block.pieces) {
    count_compact_changes(fields, piece.old_values.data(), piece.values.data(),
                          piece.offsets.size(), counts);
  }
}

// The number of bits that the counted changes take if they are coded with this table, which has all
// of their symbols.
double coded_bits(const CompactTable& table, const CompactCounts& counts) {
  double bits = 0;
  for (std::size_t c = 0; c < kCompactClasses; ++c) {
    const double stays = table.hazards[c] * (6.0 / 65536);  // bits
    const auto changes = static_cast<double>(counts.changes[c]);
    bits += (std::max(static_cast<double>(counts.units[c]), changes) - changes) * stays;
    if (counts.changes[c] == 0) continue;
    bits -= changes * std::log2(1 - std::exp2(-stays));
    if (table.step_rows[c] == 0) continue;
    const CompactSteps& steps = table.steps[table.step_rows[c] - 1];
    for (unsigned s = 0; s < kCompactStepSymbols; ++s) {
      if (counts.steps[c][s] == 0) continue;
      bits += static_cast<double>(counts.steps[c][s]) *
              std::log2(double{kCompactStepScale} / steps.weight(s));
    }
  }
  return bits;
}

double table_bits(const CompactTable& table) {
  std::vector<std::byte> bytes;
  append_compact_table(table, bytes);
  return 8.0 * static_cast<double>(bytes.size());
}

// The indexes of the blocks that may get a table of their own.
std::vector<std::size_t> large_blocks(std::span<const ChangedBlock> blocks) {
  std::vector<std::pair<std::uint64_t, std::size_t>> large;
  for (std::size_t i = 0; blocks.size() > 1 && i < blocks.size(); ++i) {
    if (const std::uint64_t changes = blocks[i].changes(); changes >= kLeastChanges) {
      large.emplace_back(changes, i);
    }
  }
  std::ranges::sort(large, std::greater());
  std::vector<std::size_t> numbers;
  for (std::size_t k = 0; k < std::min(large.size(), kMostTables); ++k) {
    numbers.push_back(large[k].second);
  }
  return numbers;
}

}  // namespace

BlockTables choose_tables(const CompactFields& fields, std::span<const ChangedBlock> blocks,
                          unsigned threads) {
  threads = std::max(1U, threads);
  std::vector<std::unique_ptr<CompactCounts>> counts(blocks.size());  // of large blocks
  for (const std::size_t block : large_blocks(blocks)) {
    counts[block] = std::make_unique<CompactCounts>();
  }
  std::vector<CompactCounts> others(threads);
  const Status counted = parallel_for(blocks.size(), threads, [&](std::size_t i, unsigned worker) {
    count_block(fields, blocks[i], counts[i] ? *counts[i] : others[worker]);
    return Status();
  });
  static_cast<void>(counted);  // counting cannot fail
  for (unsigned worker = 1; worker < threads; ++worker) others[0].add(others[worker]);
  const auto all = std::make_unique<CompactCounts>(others[0]);
  for (const auto& each : counts) {
    if (each) all->add(*each);
  }
  const CompactTable of_all = make_compact_table(fields, *all);
  for (auto& each : counts) {
    if (!each) continue;
    const CompactTable table = make_compact_table(fields, *each);
    if (coded_bits(table, *each) + table_bits(table) < coded_bits(of_all, *each)) continue;
    others[0].add(*each);
    each.reset();  // these blocks share the common table
  }
  BlockTables chosen;
  std::optional<std::uint32_t> shared;
  for (const auto& its_counts : counts) {
    const auto next = static_cast<std::uint32_t>(chosen.tables.size());
    if (its_counts || !shared) {
      chosen.tables.push_back(make_compact_table(fields, its_counts ? *its_counts : others[0]));
    }
    if (!its_counts && !shared) shared = next;
    chosen.of_block.push_back(its_counts ? next : *shared);
  }
  return chosen;
}

void ChangedBlock::copy_units(std::uint64_t first, std::uint64_t count, unsigned width,
                              std::byte* out) const {
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t unit = first + done;
    const std::uint64_t some =
        inside.contiguous() ? count : std::min(count - done, inside.run - unit % inside.run);
    std::memcpy(out + done * width, units + inside.at(unit) * width, some * width);
    done += some;
  }
}

}  // namespace driftless
