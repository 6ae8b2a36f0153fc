// SPDX-License-Identifier: Apache-2.0
#include "formats/frame.h"

#include <gtest/gtest.h>

#include "support/frame_bytes.h"
#include "support/golden_case.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::golden_bucket;
using testing::golden_context;
using testing::golden_layout;
using testing::golden_runs;
using testing::layout_of;
using testing::put;
using testing::spec;
using testing::views_of;

// As somebody does whose streams lie elsewhere.
Bytes put_together(const EncodedFrameHead& head, std::span<const std::byte> positions,
                   std::span<const std::byte> values) {
  Bytes frame(head.frame_bytes);
  std::ranges::copy(head.bytes, frame.begin());
  std::ranges::copy(positions, frame.begin() + std::ptrdiff_t(head.places.positions));
  std::ranges::copy(values, frame.begin() + std::ptrdiff_t(head.places.values));
  const auto trailer = frame_trailer(xxh3_128(std::span(frame).first(head.places.trailer)));
  std::ranges::copy(trailer, frame.begin() + std::ptrdiff_t(head.places.trailer));
  return frame;
}

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
  [[nodiscard]] Bytes front() const {
    Bytes frame = whole();
    frame.resize(frame_head_bytes(*read_frame_header(frame)).value());
    return frame;
  }
  [[nodiscard]] StatusCode decode(const Bytes& bytes) const {
    return decode_frame_head(bytes, layout_).status().code();
  }
  // The header's own hash made right.
  [[nodiscard]] StatusCode decode_resealed(Bytes bytes) const {
    put(bytes, 120, std::uint64_t{XXH3_64bits(bytes.data(), 120)});
    return decode(bytes);
  }
};

TEST_P(FrameHeadTest, OfADeltaWithStreamsAndTrailerIsTheFrame) {
  if (full()) return;
  const Result<EncodedFrameHead> made = encode_frame_head(context_, builder_.view());
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->bytes.size(), made->places.head_bytes);
  EXPECT_EQ(put_together(*made, builder_.view().positions, builder_.view().values), whole());
}

TEST_P(FrameHeadTest, DecodesToWhatTheFrameHolds) {
  const Bytes frame = whole();
  const Result<FrameInfo> info = read_frame_header(frame);
  const std::uint64_t needed = frame_head_bytes(*info).value();
  const Result<FrameHead> decoded = decode_frame_head(std::span(frame).first(needed), layout_);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->info.context, context_);
  EXPECT_EQ(decoded->info.frame_bytes, frame.size());
  EXPECT_EQ(decoded->places.trailer, frame.size() - kFrameTrailerBytes);
  const Result<Frame> known = Frame::decode(frame, layout_, 1 << 22);
  const std::vector<DenseRun> runs = known->runs();
  ASSERT_EQ(decoded->first_units.size(), runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(decoded->entries[i].tensor, runs[i].tensor);
    EXPECT_EQ(decoded->entries[i].count() * 2, runs[i].bytes.size());
    EXPECT_EQ(decoded->first_units[i], runs[i].first_unit);
  }
  const BucketView bucket = known->bucket();
  ASSERT_EQ(decoded->entries.size(), full() ? runs.size() : bucket.entries.size());
  for (std::size_t i = 0; i < bucket.entries.size(); ++i) {
    const BucketEntry& found = decoded->entries[i];
    const BucketEntry& entry = bucket.entries[i];
    EXPECT_EQ(found.tensor, entry.tensor);
    EXPECT_EQ(found.position_bytes, entry.position_bytes);
    EXPECT_EQ(found.position_begin, entry.position_begin);
    EXPECT_EQ(found.position_end, entry.position_end);
    EXPECT_EQ(found.value_begin, entry.value_begin);
    EXPECT_EQ(found.value_end, entry.value_end);
  }
  const std::byte* const data = frame.data();
  if (!full()) {
    EXPECT_EQ(data + decoded->places.positions, bucket.positions.data());
  }
  EXPECT_EQ(data + decoded->places.values,
            full() ? runs.front().bytes.data() : bucket.values.data());
}

TEST_P(FrameHeadTest, AFrameOpenedByItsFrontIsTheFrame) {
  const Bytes frame = whole();
  const Result<Frame> known = Frame::decode(frame, layout_, 1 << 22);
  const Result<Frame> opened = Frame::decode_front(front(), frame, layout_, 1 << 22);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Bytes again;
  const Status status =
      full() ? encode_full_frame(context_, layout_, DType::kBF16, opened->runs(), again)
             : encode_frame(context_, opened->bucket(), again);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(again, frame);
  EXPECT_EQ(opened->bucket().positions.data(), known->bucket().positions.data());
  EXPECT_EQ(opened->bucket().values.data(), known->bucket().values.data());
  const auto shorter = std::span(frame).first(frame.size() - 1);
  EXPECT_EQ(Frame::decode_front(front(), shorter, layout_, 1 << 22).status().code(),
            StatusCode::kCorrupt);
  EXPECT_EQ(Frame::decode_front(front(), frame, layout_, 8).status().code(), StatusCode::kCorrupt);
}

// What lies in the table has no hash in the head: a flip there is refused, or is another table that
// the whole frame's hash tells from ours.
TEST_P(FrameHeadTest, ATruncationIsRefusedAndSoIsEveryFlipInTheHeader) {
  const Bytes good = front();
  ASSERT_EQ(decode(good), StatusCode::kOk);
  for (std::size_t size = 0; size < good.size(); ++size) {
    ASSERT_EQ(decode(Bytes(good.begin(), good.begin() + std::ptrdiff_t(size))),
              StatusCode::kCorrupt);
  }
  for (std::size_t at = 0; at < kFrameHeaderBytes; ++at) {
    Bytes flipped = good;
    flipped[at] ^= std::byte{0x04};
    ASSERT_EQ(decode(flipped), StatusCode::kCorrupt) << at;
  }
}

TEST_P(FrameHeadTest, DamageBehindAGoodHashIsRefused) {
  const auto refuses = [this](std::size_t at, auto value) {
    Bytes bytes = front();
    put(bytes, at, value);
    EXPECT_EQ(decode_resealed(bytes), StatusCode::kCorrupt) << at << ": " << +value;
  };
  refuses(10, std::uint8_t{3});  // xor does not travel in frames
  refuses(11, std::uint8_t{99});
  refuses(11, static_cast<std::uint8_t>(DType::kF64));
  refuses(12, std::uint32_t{4});
  refuses(12, std::uint32_t{0xffffffff});
  refuses(16, std::uint64_t{1} << 62);
  refuses(96, ~std::uint64_t{0});
  refuses(104, ~std::uint64_t{1});
  refuses(112, std::uint64_t{1});
  const std::size_t table = kFrameHeaderBytes;
  refuses(table, std::uint32_t{4});      // no such tensor
  refuses(table, std::uint32_t{2});      // twice, or descending
  refuses(table + 4, std::uint32_t{3});  // width
  refuses(table + 8, std::uint64_t{0});
  refuses(table + 8, ~std::uint64_t{0});
  refuses(table + 8, std::uint64_t{21});  // more than the tensor has
  if (!full()) return;
  refuses(table + 3 * 16, std::uint64_t{2});       // adjoins the next
  refuses(table + 3 * 16 + 8, std::uint64_t{18});  // past the end
  refuses(table + 3 * 16 + 16, ~std::uint64_t{0});
}

TEST_P(FrameHeadTest, AnotherLayoutIsRefused) {
  const WeightLayout other = layout_of({spec("a", DType::kBF16, {100})});
  EXPECT_EQ(decode_frame_head(front(), other).status().code(), StatusCode::kWrongLayout);
}

INSTANTIATE_TEST_SUITE_P(Encodings, FrameHeadTest,
                         ::testing::Values(Encoding::kIndices, Encoding::kDeltas, Encoding::kFull),
                         [](const auto& test) {
                           return std::string(driftless::info(test.param).name);
                         });

TEST(FrameHead, OfACompressedFrameIsUnsupported) {
  const WeightLayout layout = golden_layout();
  const FrameContext context = golden_context(layout, Encoding::kDeltasZstd);
  const BucketBuilder builder = golden_bucket(layout, Encoding::kDeltasZstd);
  EXPECT_EQ(encode_frame_head(context, builder.view()).status().code(), StatusCode::kUnsupported);
  Bytes frame;
  ASSERT_TRUE(encode_frame(context, builder.view(), frame).ok());
  EXPECT_EQ(decode_frame_head(frame, layout).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(frame_head_bytes(*read_frame_header(frame)).status().code(), StatusCode::kUnsupported);
}

TEST(FrameHead, WhatDoesNotFitIsNotEncoded) {
  const WeightLayout layout = golden_layout();
  const StatusCode invalid = StatusCode::kInvalidArgument;
  const BucketBuilder builder = golden_bucket(layout, Encoding::kDeltas);
  const auto encode = [&](Encoding encoding, const BucketShape& bucket) {
    return encode_frame_head(golden_context(layout, encoding), bucket).status().code();
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
}

}  // namespace
}  // namespace driftless
