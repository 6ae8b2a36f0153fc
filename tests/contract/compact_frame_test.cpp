// SPDX-License-Identifier: Apache-2.0
// Frames of `compact`: kernels code them, and formats store them. tests/golden/frame_compact.bin
// fixes the bytes, as the files of golden_test.cpp do for other formats.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "support/checkout_paths.h"
#include "support/compact_byte_case.h"
#include "support/compact_case.h"
#include "support/frame_head.h"
#include "support/frame_reseal.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::CompactByteCase;
using testing::CompactCase;
using testing::frame_head_of;

constexpr std::uint64_t kMaxBody = 1 << 22;

void expect_decodes_to(const CompactCase& expected, const Frame& frame) {
  const std::vector<CompactBlock> blocks = frame.compact_blocks();
  ASSERT_EQ(blocks.size(), expected.blocks.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const CompactCase::Block& block = expected.blocks[i];
    EXPECT_EQ(blocks[i].tensor, block.tensor);
    const auto index = Frame::read_index(expected.layout, blocks[i]);
    ASSERT_TRUE(index.ok()) << index.status().to_string();
    EXPECT_EQ(index->tiles, block.streams.tiles);
    CompactChanges changes;
    const Status decoded =
        decode_compact(host_kernels(), frame.compact_tables()[blocks[i].table], block.before.data(),
                       block.units(), index->tiles, blocks[i].tiles, changes);
    ASSERT_TRUE(decoded.ok()) << decoded.to_string();
    EXPECT_EQ(changes.offsets, block.positions);
    EXPECT_EQ(changes.values, block.values);
    EXPECT_EQ(changes.old_values, block.old_values);
  }
}

void expect_golden(const std::string& name, const Bytes& fresh) {
  const std::string path = std::string(testing::test_data()) + "/golden/" + name;
  if (std::getenv("DRIFTLESS_WRITE_GOLDEN") != nullptr && !std::ifstream(path).good()) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(fresh.data()), std::ssize(fresh));
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  ASSERT_EQ(fresh.size(), text.size()) << path;
  EXPECT_EQ(std::memcmp(fresh.data(), text.data(), text.size()), 0) << path;
}

TEST(CompactFrame, IsTheGoldenOneAndDecodes) {
  const CompactCase input;
  const Bytes fresh = input.frame();
  expect_golden("frame_compact.bin", fresh);
  const auto frame = Frame::decode(fresh, input.layout, kMaxBody);
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  EXPECT_TRUE(frame->compact());
  EXPECT_TRUE(frame->bucket().entries.empty() && frame->runs().empty());
  expect_decodes_to(input, *frame);
}

TEST(CompactFrame, SomeBlocksAreFetchedAlone) {
  const CompactCase input;
  const Bytes fresh = input.frame();
  const Bytes head = frame_head_of(read_frame_header(fresh).value(), fresh);
  auto collector = FrameCollector::open(head, input.layout, kMaxBody, [](const BucketEntry& entry) {
    return entry.block != nullptr && entry.block->box.offsets[0] == 300;
  });
  ASSERT_TRUE(collector.ok()) << collector.status().to_string();
  for (std::size_t i = 0; i < collector->ranges().size(); ++i) {
    const FrameRange& range = collector->ranges()[i];
    ASSERT_TRUE(collector->take(i, std::span(fresh).subspan(range.offset, range.size_bytes)).ok());
  }
  const auto frame = collector->finish(input.layout);
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  CompactCase last;
  last.blocks.erase(last.blocks.begin(), last.blocks.begin() + 2);
  expect_decodes_to(last, *frame);
}

Digest change_digest_of(const CompactCase& input, const CompactCase::Block& block,
                        const CompactChanges& changes) {
  const BlockPlace place = block.cut != nullptr ? block.cut->place : BlockPlace::all(block.units());
  std::vector<std::uint32_t> offsets;
  for (const std::uint32_t offset : changes.offsets) {
    offsets.push_back(static_cast<std::uint32_t>(place.at(offset)));
  }
  return host_kernels().digest_change(digest_tensor_key(input.layout[block.tensor].name), 2, 0,
                                      offsets.data(), offsets.size(), changes.old_values.data(),
                                      changes.values.data());
}

// Every flipped bit is found: by a hash or, after all hashes were recomputed, by the checks of the
// fields, by a tile that does not decode, or by the digest of the change.
TEST(CompactFrame, DamageIsFound) {
  const CompactCase input;
  const Bytes good = input.frame();
  for (std::size_t at = 0; at < good.size(); ++at) {
    Bytes damaged = good;
    damaged[at] ^= std::byte{0x10};
    EXPECT_FALSE(Frame::decode(damaged, input.layout, kMaxBody).ok()) << at;
    testing::reseal(damaged);
    const auto frame = Frame::decode(damaged, input.layout, kMaxBody);
    if (!frame.ok()) continue;
    const std::vector<CompactBlock> blocks = frame->compact_blocks();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto index = Frame::read_index(input.layout, blocks[i]);
      if (!index.ok()) continue;
      const CompactCase::Block& block = input.blocks[i];
      CompactChanges changes;
      if (blocks[i].units(input.layout) != block.units()) continue;
      const Status decoded = decode_compact(
          host_kernels(), frame->compact_tables()[blocks[i].table], block.before.data(),
          block.units(), index->tiles, blocks[i].tiles, changes);
      if (!decoded.ok() || change_digest_of(input, block, changes) != index->change) continue;
      EXPECT_EQ(changes.offsets, block.positions) << at;
      EXPECT_EQ(changes.values, block.values) << at;
    }
  }
}

TEST(CompactFrame, WhatDoesNotFitIsRefused) {
  const CompactCase input;
  Bytes out;
  const FrameContext context = testing::golden_context(input.layout, Encoding::kCompact);
  const auto encode = [&](std::vector<CompactBlock> blocks, DType dtype) {
    return encode_compact_frame(context, input.layout, dtype, input.tables, blocks, out).code();
  };
  std::vector<CompactBlock> twice = input.views();
  twice.push_back(twice.front());
  EXPECT_EQ(encode(twice, DType::kBF16), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode(input.views(), DType::kF16), StatusCode::kInvalidArgument);
  EXPECT_EQ(encode(input.views(), DType::kU16), StatusCode::kInvalidArgument);
  std::vector<CompactBlock> unordered = input.views();
  std::reverse(unordered.begin(), unordered.end());
  EXPECT_EQ(encode(unordered, DType::kBF16), StatusCode::kInvalidArgument);
  std::vector<CompactBlock> empty = input.views();
  empty[1].changes = 0;
  EXPECT_EQ(encode(empty, DType::kBF16), StatusCode::kInvalidArgument);
  EXPECT_TRUE(out.empty());
}

// Reads back an index of these tiles as it was written, and refuses the index with any bit flipped.
void expect_one_way(const CompactFields& fields, const CompactIndex& index, std::uint64_t units) {
  std::uint64_t changes = 0, size = 0;
  for (const CompactTile& tile : index.tiles) {
    changes += tile.changes;
    size += tile.bytes;
  }
  Bytes bytes;
  append_compact_index(index, bytes);
  const auto read = read_compact_index(fields, bytes, units, changes, size);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->tiles, index.tiles);
  EXPECT_EQ(read->change, index.change);
  EXPECT_FALSE(read_compact_index(fields, bytes, units, changes - 1, size).ok());
  EXPECT_FALSE(read_compact_index(fields, bytes, units, changes, size + 1).ok());
  EXPECT_FALSE(read_compact_index(fields, bytes, units + 1, changes, size).ok());
  EXPECT_FALSE(
      read_compact_index(fields, bytes, units - 1, changes, size).ok());  // a full tile cut
  for (std::size_t at = 16; at < bytes.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Bytes damaged = bytes;
      damaged[at] ^= static_cast<std::byte>(1U << bit);
      EXPECT_FALSE(read_compact_index(fields, damaged, units, changes, size).ok())
          << at << " " << bit;
    }
  }
}

TEST(CompactIndex, IsWrittenInOneWay) {
  expect_one_way(*compact_fields(DType::kBF16), {{{5, 7}}, {{3, 9}, {0, 0}, {16384, 70000}}},
                 3 * std::uint64_t{kCompactTileUnits});
  expect_one_way(*compact_fields(DType::kF8E4M3), {{{5, 7}}, {{3, 9}, {0, 0}, {65536, 70000}}},
                 3 * std::uint64_t{kCompactByteTileUnits});
  // The least number of changes is stored in 16 bits.
  expect_one_way(*compact_fields(DType::kF8E4M3), {{{5, 7}}, {{65536, 70001}, {65536, 70000}}},
                 2 * std::uint64_t{kCompactByteTileUnits});
}

// A reader allocates nothing for changes that the stream cannot hold.
TEST(CompactIndex, HasNoMoreChangesThanBits) {
  const CompactFields fields = *compact_fields(DType::kBF16);
  for (const std::uint32_t size : {5U, 2047U, 2048U}) {
    Bytes bytes;
    append_compact_index({{{5, 7}}, {{16384, size}}}, bytes);
    EXPECT_EQ(read_compact_index(fields, bytes, kCompactTileUnits, 16384, size).ok(), size == 2048)
        << size;
  }
}

TEST(CompactFrame, OfBytesIsTheGoldenOneAndDecodes) {
  const CompactByteCase input;
  const Bytes fresh = input.frame();
  expect_golden("frame_compact_fp8.bin", fresh);
  const auto frame = Frame::decode(fresh, input.layout, kMaxBody);
  ASSERT_TRUE(frame.ok()) << frame.status().to_string();
  const std::vector<CompactBlock> blocks = frame->compact_blocks();
  ASSERT_EQ(blocks.size(), 1U);
  const auto index = Frame::read_index(input.layout, blocks[0]);
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  ASSERT_EQ(index->tiles.size(), 2U);
  CompactChanges changes;
  ASSERT_TRUE(decode_compact(host_kernels(), frame->compact_tables()[0], input.before.data(),
                             input.before.size(), index->tiles, blocks[0].tiles, changes)
                  .ok());
  EXPECT_EQ(changes.offsets, input.positions);
  EXPECT_EQ(changes.values, input.values);
}

TEST(CompactFrame, OfBytesInTheTilesOfAnEarlierReleaseIsRefusedByName) {
  const CompactByteCase input;
  Bytes frame = input.frame();
  const std::size_t row = frame.size() - 16 - testing::get<std::uint64_t>(frame, 24);
  ASSERT_EQ(frame[row + 10], std::byte{3});
  for (const auto& [flags, code] : {std::pair{1, StatusCode::kUnsupported},
                                    {0, StatusCode::kCorrupt},
                                    {2, StatusCode::kCorrupt},
                                    {7, StatusCode::kCorrupt}}) {
    frame[row + 10] = static_cast<std::byte>(flags);
    testing::reseal(frame);
    const auto read = Frame::decode(frame, input.layout, kMaxBody);
    EXPECT_EQ(read.status().code(), code) << flags << read.status().to_string();
    if (flags != 1) continue;
    EXPECT_NE(read.status().to_string().find("tiles of 16384"), std::string::npos);
  }
  // Types of two bytes have one size of tile only.
  const CompactCase plain;
  Bytes words = plain.frame();
  const std::size_t first = words.size() - 16 - testing::get<std::uint64_t>(words, 24);
  ASSERT_EQ(words[first + 10], std::byte{1});
  words[first + 10] = std::byte{3};
  testing::reseal(words);
  EXPECT_EQ(Frame::decode(words, plain.layout, kMaxBody).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace driftless
