// SPDX-License-Identifier: Apache-2.0
// Heads of frames, frames put together elsewhere, and frames of which only some blocks are there.
#include <gtest/gtest.h>

#include "core/parallel.h"
#include "support/frame_bytes.h"
#include "support/frame_head.h"
#include "support/golden_case.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::Changes;
using testing::decode_all;
using testing::frame_head_of;
using testing::golden_bucket;
using testing::golden_context;
using testing::golden_layout;
using testing::golden_runs;
using testing::GoldenBlocks;
using testing::layout_of;
using testing::put;
using testing::reseal;
using testing::spec;
using testing::views_of;

constexpr std::uint64_t kMaxBody = 1 << 22;

class FrameHeadTest : public ::testing::TestWithParam<Encoding> {
 protected:
  const WeightLayout layout_ = golden_layout();
  const FrameContext context_ = golden_context(layout_, GetParam());
  const BucketBuilder builder_ = golden_bucket(layout_, GetParam());

  [[nodiscard]] bool full() const { return GetParam() == Encoding::kFull; }
  [[nodiscard]] Bytes whole() const {
    Bytes frame;
    const auto runs = golden_runs();
    const Status status =
        full() ? encode_full_frame(context_, layout_, DType::kBF16, views_of(runs), frame)
               : encode_frame(context_, builder_.view(), frame);
    EXPECT_TRUE(status.ok()) << status.message();
    return frame;
  }
  [[nodiscard]] Bytes head() const {
    const Bytes frame = whole();
    return frame_head_of(*read_frame_header(frame), frame);
  }
};

TEST_P(FrameHeadTest, WithStreamsAndTableItIsTheFrame) {
  if (full() || GetParam() == Encoding::kDeltasZstd) return;
  const BucketView bucket = builder_.view();
  const Result<FramePlan> plan = plan_frame(context_, bucket);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  Bytes frame(plan->frame_bytes);
  const auto place = [&](std::span<const std::byte> bytes, std::uint64_t at) {
    std::ranges::copy(bytes, frame.begin() + std::ptrdiff_t(at));
  };
  std::vector<Hash128> hashes;
  for (const BucketEntry& entry : bucket.entries) {
    hashes.push_back(
        block_hash(xxh3_128(bucket.positions.subspan(entry.position_begin,
                                                     entry.position_end - entry.position_begin)),
                   xxh3_128(bucket.values.subspan(entry.value_begin * 2, entry.count() * 2))));
  }
  place(plan->header, 0);
  place(bucket.positions, plan->places.positions);
  place(bucket.values, plan->places.values);
  place(encode_frame_table(context_, bucket, hashes).value(), plan->places.table);
  EXPECT_EQ(frame, whole());
}

TEST_P(FrameHeadTest, DecodesToWhatTheFrameHolds) {
  const Bytes frame = whole();
  const Result<FrameHead> decoded = decode_frame_head(head(), layout_);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->info.context, context_);
  EXPECT_EQ(decoded->info.frame_bytes, frame.size());
  EXPECT_EQ(decoded->places.trailer, frame.size() - kFrameTrailerBytes);
  const Result<Frame> known = Frame::decode(frame, layout_, kMaxBody);
  const std::vector<DenseRun> runs = known->runs();
  const BucketView bucket = known->bucket();
  ASSERT_EQ(decoded->entries.size(), full() ? runs.size() : bucket.entries.size());
  for (std::size_t i = 0; i < decoded->entries.size(); ++i) {
    const BucketEntry& found = decoded->entries[i];
    const FrameBlock& block = decoded->blocks[i];
    const auto values = std::span(frame).subspan(block.values.offset, block.values.size_bytes);
    if (full()) {
      EXPECT_EQ(found.tensor, runs[i].tensor);
      EXPECT_EQ(block.first_unit, runs[i].first_unit);
      EXPECT_TRUE(std::ranges::equal(values, runs[i].bytes));
      continue;
    }
    const BucketEntry& entry = bucket.entries[i];
    EXPECT_EQ(found.tensor, entry.tensor);
    EXPECT_EQ(found.position_bytes, entry.position_bytes);
    EXPECT_EQ(found.position_begin, entry.position_begin);
    EXPECT_EQ(found.value_begin, entry.value_begin);
    EXPECT_EQ(found.count(), entry.count());
    if (block.values.zstd) continue;
    EXPECT_TRUE(std::ranges::equal(
        values, bucket.values.subspan(entry.value_begin * 2, entry.count() * 2)));
  }
}

TEST_P(FrameHeadTest, AFrameOpenedByItsHeadIsTheFrame) {
  const Bytes frame = whole();
  const Result<Frame> opened = Frame::decode_head(head(), frame, layout_, kMaxBody);
  if (GetParam() == Encoding::kDeltasZstd) {
    EXPECT_EQ(opened.status().code(), StatusCode::kUnsupported);
    return;
  }
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  const Result<Frame> known = Frame::decode(frame, layout_, kMaxBody);
  Bytes again;
  const Status status =
      full() ? encode_full_frame(context_, layout_, DType::kBF16, opened->runs(), again)
             : encode_frame(context_, opened->bucket(), again);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(again, frame);
  EXPECT_EQ(opened->bucket().positions.data(), known->bucket().positions.data());
  const auto shorter = std::span(frame).first(frame.size() - 1);
  EXPECT_EQ(Frame::decode_head(head(), shorter, layout_, kMaxBody).status().code(),
            StatusCode::kCorrupt);
  EXPECT_EQ(Frame::decode_head(head(), frame, layout_, 8).status().code(), StatusCode::kCorrupt);
}

// The streams in any order, on any thread.
Result<Frame> read_by_streams(std::span<const std::byte> frame, const WeightLayout& layout,
                              KeptMemory* memory) {
  DRIFTLESS_ASSIGN_OR_RETURN(FrameReader reader,
                             FrameReader::open(frame, layout, kMaxBody, memory));
  std::vector<ZstdUnpacker> zstd(3);
  DRIFTLESS_RETURN_IF_ERROR(
      parallel_for(reader.streams(), 3, [&](std::size_t i, unsigned worker) -> Status {
        return reader.read(reader.streams() - 1 - i, zstd[worker]);
      }));
  return reader.finish(layout);
}

TEST_P(FrameHeadTest, AFrameReadByItsStreamsIsTheFrame) {
  const Bytes frame = whole();
  KeptMemory memory(1 << 20);
  const Result<Frame> known = Frame::decode(frame, layout_, kMaxBody);
  const Result<Frame> read = read_by_streams(frame, layout_, &memory);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->info().context, context_);
  Bytes again;
  const Status status =
      full() ? encode_full_frame(context_, layout_, DType::kBF16, read->runs(), again)
             : encode_frame(context_, read->bucket(), again);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(again, frame);
  EXPECT_TRUE(std::ranges::equal(read->bucket().positions, known->bucket().positions));
  EXPECT_TRUE(std::ranges::equal(read->bucket().values, known->bucket().values));
  EXPECT_EQ(FrameReader::open(frame, layout_, 8, nullptr).status().code(), StatusCode::kCorrupt);
}

TEST_P(FrameHeadTest, AFrameReadByItsStreamsIsCheckedAsItIsDecoded) {
  testing::expect_damage_is_corrupt(whole(), [&](const Bytes& bytes) {
    return read_by_streams(bytes, layout_, nullptr).status().code();
  });
}

TEST_P(FrameHeadTest, EveryTruncationExtensionAndFlipIsCorrupt) {
  testing::expect_damage_is_corrupt(head(), [&](const Bytes& bytes) {
    return decode_frame_head(bytes, layout_).status().code();
  });
}

TEST_P(FrameHeadTest, AnotherLayoutIsRefused) {
  const WeightLayout other = layout_of({spec("a", DType::kBF16, {100})});
  EXPECT_EQ(decode_frame_head(head(), other).status().code(), StatusCode::kWrongLayout);
}

// What is collected of some blocks is what they are in the whole frame.
TEST_P(FrameHeadTest, CollectsAnyChoiceOfBlocks) {
  const Bytes frame = whole();
  const Result<Frame> known = Frame::decode(frame, layout_, kMaxBody);
  for (unsigned choice = 0; choice < 8; ++choice) {
    unsigned number = 0;
    auto collector = FrameCollector::open(head(), layout_, kMaxBody, [&](const BucketEntry&) {
      return (choice >> number++ & 1U) != 0;
    });
    ASSERT_TRUE(collector.ok()) << collector.status().message();
    EXPECT_EQ(collector->all(), choice == 7);
    for (std::size_t i = collector->ranges().size(); i-- > 0;) {
      const FrameRange& range = collector->ranges()[i];
      const auto bytes = std::span(frame).subspan(range.offset, range.size_bytes);
      ASSERT_TRUE(collector->take(i, bytes).ok());
    }
    const Result<Frame> found = collector->finish(layout_);
    ASSERT_TRUE(found.ok()) << found.status().message();
    std::size_t taken = 0;
    for (unsigned i = 0; i < 3; ++i) {
      if ((choice >> i & 1U) == 0) continue;
      if (full()) {
        const DenseRun expected = known->runs()[i];
        EXPECT_EQ(found->runs()[taken].first_unit, expected.first_unit);
        EXPECT_TRUE(std::ranges::equal(found->runs()[taken].bytes, expected.bytes));
      }
      ++taken;
    }
    EXPECT_EQ(found->others().size(), 3 - taken);
    if (full()) continue;
    Changes expected = decode_all(layout_, known->bucket()).value();
    for (const BucketEntry& other : found->others()) expected.erase(other.tensor);
    EXPECT_EQ(decode_all(layout_, found->bucket()).value(), expected);
  }
}

TEST_P(FrameHeadTest, ACollectedBlockMustHaveItsHash) {
  const Bytes frame = whole();
  auto collector =
      FrameCollector::open(head(), layout_, kMaxBody, [](const BucketEntry&) { return true; });
  ASSERT_TRUE(collector.ok());
  for (std::size_t i = 0; i < collector->ranges().size(); ++i) {
    const FrameRange& range = collector->ranges()[i];
    Bytes bytes(frame.begin() + std::ptrdiff_t(range.offset),
                frame.begin() + std::ptrdiff_t(range.offset + range.size_bytes));
    if (i + 1 == collector->ranges().size()) bytes.back() ^= std::byte{1};
    const Status taken = collector->take(i, bytes);
    if (!taken.ok()) {  // zstd has noticed
      EXPECT_EQ(taken.code(), StatusCode::kCorrupt);
      return;
    }
  }
  EXPECT_EQ(collector->finish(layout_).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(collector->take(0, {}).code(), StatusCode::kCorrupt);
}

INSTANTIATE_TEST_SUITE_P(Encodings, FrameHeadTest,
                         ::testing::Values(Encoding::kIndices, Encoding::kDeltas,
                                           Encoding::kDeltasZstd, Encoding::kFull),
                         [](const auto& test) {
                           return std::string(driftless::info(test.param).name);
                         });

TEST(FrameHead, OfACompressedFrameIsNotPutTogetherElsewhere) {
  const WeightLayout layout = golden_layout();
  const FrameContext context = golden_context(layout, Encoding::kDeltasZstd);
  const BucketBuilder builder = golden_bucket(layout, Encoding::kDeltasZstd);
  EXPECT_EQ(plan_frame(context, builder.view()).status().code(), StatusCode::kUnsupported);
}

TEST(FrameHead, WhatDoesNotFitIsNotEncoded) {
  const WeightLayout layout = golden_layout();
  const StatusCode invalid = StatusCode::kInvalidArgument;
  const BucketBuilder builder = golden_bucket(layout, Encoding::kDeltas);
  const auto encode = [&](Encoding encoding, const BucketShape& bucket) {
    return plan_frame(golden_context(layout, encoding), bucket).status().code();
  };
  EXPECT_EQ(encode(Encoding::kDeltas, builder.view()), StatusCode::kOk);
  EXPECT_EQ(encode(Encoding::kIndices, builder.view()), invalid);
  EXPECT_EQ(encode(Encoding::kFull, builder.view()), invalid);
  EXPECT_EQ(encode(Encoding::kXor, builder.view()), invalid);
  BucketShape longer = builder.view();
  longer.values_bytes += 2;
  EXPECT_EQ(encode(Encoding::kDeltas, longer), invalid);
  longer = builder.view();
  longer.positions_bytes += 1;
  EXPECT_EQ(encode(Encoding::kDeltas, longer), invalid);
  const std::vector<Hash128> few(1);
  EXPECT_EQ(encode_frame_table(golden_context(layout, Encoding::kDeltas), builder.view(), few)
                .status()
                .code(),
            invalid);
}

// --- blocks

class FrameOfBlocks : public ::testing::TestWithParam<Encoding> {
 protected:
  const WeightLayout layout_ = golden_layout();
  const GoldenBlocks blocks_{layout_};

  [[nodiscard]] bool full() const { return GetParam() == Encoding::kFull; }
  [[nodiscard]] Bytes make() const {
    Bytes frame;
    const FrameContext context = golden_context(layout_, GetParam());
    const Status status =
        full() ? encode_full_frame(context, layout_, DType::kBF16, blocks_.runs(), frame)
               : encode_frame(context, blocks_.bucket().view(), frame);
    EXPECT_TRUE(status.ok()) << status.message();
    return frame;
  }
  [[nodiscard]] StatusCode decode(const Bytes& frame) const {
    const auto decoded = Frame::decode(frame, layout_, kMaxBody);
    if (!decoded.ok()) return decoded.status().code();
    return decode_all(layout_, decoded->bucket()).status().code();
  }
};

TEST_P(FrameOfBlocks, RoundTrips) {
  const Bytes frame = make();
  Result<Frame> decoded = Frame::decode(frame, layout_, kMaxBody);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  const Frame moved = std::move(*decoded);
  Bytes again;
  const FrameContext context = golden_context(layout_, GetParam());
  if (!full()) {
    EXPECT_EQ(decode_all(layout_, moved.bucket()).value(), blocks_.changes());
    ASSERT_TRUE(encode_frame(context, moved.bucket(), again).ok());
  } else {
    ASSERT_EQ(moved.runs().size(), blocks_.runs().size());
    for (std::size_t i = 0; i < blocks_.runs().size(); ++i) {
      EXPECT_EQ(moved.runs()[i].block->box, blocks_.runs()[i].block->box);
      EXPECT_EQ(moved.runs()[i].first_unit, blocks_.runs()[i].first_unit);
      EXPECT_TRUE(std::ranges::equal(moved.runs()[i].bytes, blocks_.runs()[i].bytes));
    }
    ASSERT_TRUE(encode_full_frame(context, layout_, DType::kBF16, moved.runs(), again).ok());
  }
  EXPECT_EQ(again, frame);
}

TEST_P(FrameOfBlocks, EveryTruncationExtensionAndFlipIsCorrupt) {
  testing::expect_damage_is_corrupt(make(), [&](const Bytes& frame) { return decode(frame); });
}

TEST_P(FrameOfBlocks, BoxesAreChecked) {
  const Bytes good = make();
  const std::size_t table = good.size() - kFrameTrailerBytes - read_frame_header(good)->table_bytes;
  const std::size_t box = table + kFrameRowBytes;  // rows 0:4, columns 0:2 of 4 x 5
  const auto refuses = [&](std::size_t at, std::uint64_t value) {
    Bytes frame = good;
    put(frame, at, value);
    ASSERT_NE(frame, good);
    reseal(frame);
    EXPECT_EQ(decode(frame), StatusCode::kCorrupt) << at << ": " << value;
  };
  refuses(box, 1);  // past the end
  refuses(box, ~0ULL);
  refuses(box + 8, 0);  // empty
  refuses(box + 8, 5);  // past the end
  refuses(box + 8, ~0ULL);
  refuses(box + 16, 1);  // meets the next
  refuses(box + 24, 3);  // likewise
  refuses(box + 24, 5);  // all of it, which is no block
}

INSTANTIATE_TEST_SUITE_P(Encodings, FrameOfBlocks,
                         ::testing::Values(Encoding::kDeltas, Encoding::kDeltasZstd,
                                           Encoding::kFull),
                         [](const auto& test) {
                           return std::string(driftless::info(test.param).name);
                         });

TEST(FrameBlocks, ATensorInTooManyBlocksIsRefused) {
  const WeightLayout layout = layout_of({spec("a", DType::kU8, {2000, 2})});
  std::vector<TensorBlock> blocks;
  for (std::uint64_t row = 0; row <= kMaxBlocksOfTensor; ++row) {
    blocks.push_back(TensorBlock::make(0, layout[0], {{row, 0}, {1, 2}}).value());
  }
  BucketBuilder builder(layout, Encoding::kDeltas);
  const auto encode = [&] {
    Bytes frame;
    EXPECT_TRUE(
        encode_frame({{}, 0, layout.signature(), Encoding::kDeltas, 0, 0}, builder.view(), frame)
            .ok());
    return Frame::decode(frame, layout, kMaxBody).status().code();
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i == kMaxBlocksOfTensor) {
      EXPECT_EQ(encode(), StatusCode::kOk);
    }
    ASSERT_TRUE(builder.add(testing::delta_at(layout, 0, 0, {1}).view(), &blocks[i]).ok());
  }
  EXPECT_EQ(encode(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace driftless
