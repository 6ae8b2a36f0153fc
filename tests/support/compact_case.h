// SPDX-License-Identifier: Apache-2.0
// The fixed input behind tests/golden/frame_compact.bin: weights and changes that are functions of
// their places, which tests/python/test_compact_reader.py has, too. Changing anything here changes
// the golden file.
#pragma once

#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/compact_ops.h"
#include "support/golden_case.h"

namespace driftless::testing {

inline std::uint64_t compact_noise(std::uint32_t tensor, std::uint64_t unit) {
  return digest_mix((3 * unit + tensor + 1) * kDigestGolden);
}
inline std::uint16_t compact_old(std::uint32_t tensor, std::uint64_t unit) {
  const std::uint64_t noise = compact_noise(tensor, unit);
  const auto exponent = static_cast<std::uint64_t>(121 - std::countr_zero((noise >> 8) | 4096));
  return static_cast<std::uint16_t>((noise & 1) << 15 | exponent << 7 | ((noise >> 1) & 127));
}
inline std::uint16_t compact_new(std::uint32_t tensor, std::uint64_t unit) {
  const std::uint64_t noise = compact_noise(tensor, unit);
  const std::uint16_t old = compact_old(tensor, unit);
  if ((noise >> 40) % (tensor == 0 ? 3 : 32) != 0) return old;
  switch ((noise >> 48) % 16) {
    case 0: return old ^ 0x8033;
    case 1: return static_cast<std::uint16_t>(old - 3);
    case 2: return static_cast<std::uint16_t>(old + 9);
    case 3: return static_cast<std::uint16_t>(old + 130);
    default: return static_cast<std::uint16_t>((noise >> 48) % 2 == 1 ? old + 1 : old - 1);
  }
}

// All of tensor 0, and two blocks of tensor 1: rows, and a part of some. A table for each tensor.
struct CompactCase {
  struct Block {
    std::uint32_t tensor = 0;
    std::unique_ptr<TensorBlock> cut;
    Bytes before, index;
    std::vector<std::uint32_t> positions;
    Bytes values, old_values;
    CompactStreams streams;

    [[nodiscard]] std::uint64_t units() const { return before.size() / 2; }
  };
  std::vector<Block> blocks;
  std::vector<CompactTable> tables;
  WeightLayout layout = golden_layout();

  CompactCase() {
    const CompactFields fields = *compact_fields(DType::kBF16);
    add(0, {});
    add(1, {{100, 0}, {200, 500}});
    add(1, {{300, 250}, {100, 250}});
    for (const std::uint32_t tensor : {0U, 1U}) {
      const auto counts = std::make_unique<CompactCounts>();
      for (const Block& block : blocks) {
        if (block.tensor != tensor) continue;
        count_compact_units(fields, block.before.data(), block.units(), *counts);
        count_compact_changes(fields, block.old_values.data(), block.values.data(),
                              block.positions.size(), *counts);
      }
      tables.push_back(make_compact_table(fields, *counts));
    }
    for (Block& block : blocks) code(block);
  }

  [[nodiscard]] std::vector<CompactBlock> views() const {
    std::vector<CompactBlock> views;
    for (const Block& block : blocks) {
      views.push_back({block.tensor, block.cut.get(), block.tensor, block.positions.size(),
                       block.index, block.streams.bytes});
    }
    return views;
  }
  [[nodiscard]] Bytes frame() const {
    FrameContext context = golden_context(layout, Encoding::kCompact);
    Bytes out;
    if (!encode_compact_frame(context, layout, DType::kBF16, tables, views(), out).ok()) out = {};
    return out;
  }

 private:
  void add(std::uint32_t tensor, const TensorBox& box) {
    Block block;
    block.tensor = tensor;
    BlockPlace place = BlockPlace::all(layout[tensor].units());
    if (!box.whole()) {
      block.cut =
          std::make_unique<TensorBlock>(TensorBlock::make(tensor, layout[tensor], box).value());
      place = block.cut->place;
    }
    const auto append = [](Bytes& to, std::uint16_t value) {
      to.resize(to.size() + 2);
      std::memcpy(to.data() + to.size() - 2, &value, 2);
    };
    for (std::uint64_t unit = 0; unit < place.units; ++unit) {
      const std::uint16_t before = compact_old(tensor, place.at(unit));
      const std::uint16_t after = compact_new(tensor, place.at(unit));
      append(block.before, before);
      if (after == before) continue;
      block.positions.push_back(static_cast<std::uint32_t>(unit));
      append(block.values, after);
      append(block.old_values, before);
    }
    blocks.push_back(std::move(block));
  }
  void code(Block& block) const {
    const DeltaView delta{block.tensor, 2, 0, block.positions, block.values.data()};
    if (!encode_compact(all_host_kernels().front(), tables[block.tensor], delta,
                        block.before.data(), block.units(), block.streams)
             .ok()) {
      std::abort();
    }
    CompactIndex index{{}, block.streams.tiles};
    const BlockPlace place =
        block.cut != nullptr ? block.cut->place : BlockPlace::all(block.units());
    for (std::size_t k = 0; k < block.positions.size(); ++k) {
      const auto at = static_cast<std::uint32_t>(place.at(block.positions[k]));
      index.change += all_host_kernels().front().digest_change(
          digest_tensor_key(layout[block.tensor].name), 2, 0, &at, 1,
          block.old_values.data() + 2 * k, block.values.data() + 2 * k);
    }
    append_compact_index(index, block.index);
  }
};

}  // namespace driftless::testing
