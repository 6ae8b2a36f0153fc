// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/compact_tables.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "plugin/targets/version_fold.h"

namespace driftless {
namespace {

constexpr std::uint64_t kUnits = 1 << 20;

// A tensor with two exponents. In one of them 4 % of the units change, by one ULP.
struct MadeTensor {
  explicit MadeTensor(unsigned changing, unsigned seed, std::uint32_t number) : before(kUnits) {
    std::mt19937 random(seed);
    for (std::uint16_t& unit : before) {
      unit = static_cast<std::uint16_t>(((random() % 2 == 0 ? 118U : 122U) << 7) + random() % 100);
    }
    after = before;
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> values, old_values;
    for (std::uint32_t i = 0; i < kUnits; ++i) {
      if (before[i] >> 7 != changing || random() % 25 != 0) continue;
      ++after[i];
      offsets.push_back(i);
    }
    values.resize(2 * offsets.size());
    old_values.resize(values.size());
    for (std::size_t k = 0; k < offsets.size(); ++k) {
      std::memcpy(values.data() + 2 * k, &after[offsets[k]], 2);
      std::memcpy(old_values.data() + 2 * k, &before[offsets[k]], 2);
    }
    block.tensor = number;
    block.units = reinterpret_cast<const std::byte*>(after.data());
    block.inside = BlockPlace::all(kUnits);
    block.add({number, 2, 0, offsets, values.data()}, old_values.data());
  }
  std::vector<std::uint16_t> before, after;
  ChangedBlock block;
};

const CompactFields kFields = *compact_fields(DType::kBF16);

TEST(CompactTables, TensorsThatAreAlikeShareOne) {
  const MadeTensor a(118, 1, 0), b(118, 2, 1);
  const std::vector<ChangedBlock> blocks{a.block, b.block};
  const BlockTables chosen = choose_tables(kFields, blocks, 2);
  EXPECT_EQ(chosen.tables.size(), 1U);
  EXPECT_EQ(chosen.of_block, (std::vector<std::uint32_t>{0, 0}));
}

TEST(CompactTables, ATensorUnlikeTheOthersGetsATableAndDecodes) {
  const MadeTensor a(118, 1, 0), b(122, 2, 1), c(118, 3, 2);
  const std::vector<ChangedBlock> blocks{a.block, b.block, c.block};
  const BlockTables chosen = choose_tables(kFields, blocks, 2);
  EXPECT_GT(chosen.tables.size(), 1U);
  EXPECT_NE(chosen.of_block[1], chosen.of_block[0]);

  const auto layout = *WeightLayout::make({*TensorSpec::make("a", DType::kBF16, {kUnits}),
                                           *TensorSpec::make("b", DType::kBF16, {kUnits}),
                                           *TensorSpec::make("c", DType::kBF16, {kUnits})});
  const FrameContext context{{{1, 2}, 1}, 0, layout.signature(), Encoding::kCompact, 0, 0};
  std::vector<std::byte> together;
  ASSERT_TRUE(encode_changed_blocks(context, layout, DType::kBF16, blocks, 2, together).ok());
  std::size_t changes = 0;
  for (const ChangedBlock& block : blocks) changes += block.changes();
  // Of half of a tensor's units, 4 % change: 6.1 bits per change with the table, 7.1 without.
  EXPECT_LT(8.0 * static_cast<double>(together.size()) / static_cast<double>(changes), 7.5);

  const auto frame = Frame::decode(together, layout, max_frame_body_bytes(layout));
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  EXPECT_EQ(frame->compact_tables().size(), chosen.tables.size());
  const std::array<const MadeTensor*, 3> made{&a, &b, &c};
  const OldUnits units = [&](std::uint32_t tensor, std::uint64_t first, std::uint64_t,
                             std::byte*) -> Result<const std::byte*> {
    return reinterpret_cast<const std::byte*>(made[tensor]->before.data() + first);
  };
  const std::array<std::uint32_t, 3> all{0, 1, 2};
  DecodedBlocks decoded;
  ASSERT_TRUE(decode_frame(layout, *frame, units, {all}, decoded).ok());
  for (const CompactBlock& block : frame->compact_blocks()) {
    const UnitChanges& changed = decoded.at(block.tiles.data());
    const ChangedBlock::Piece& expected = made[block.tensor]->block.pieces[0];
    EXPECT_EQ(changed.values, expected.values);
    EXPECT_TRUE(std::ranges::equal(changed.positions, expected.offsets));
  }
}

}  // namespace
}  // namespace driftless
