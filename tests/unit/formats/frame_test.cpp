// SPDX-License-Identifier: Apache-2.0
#include "formats/frame.h"

#include <gtest/gtest.h>

#include "formats/zstd_stream.h"
#include "support/delta_model.h"
#include "support/frame_bytes.h"
#include "support/zstd_bytes.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::Changes;
using testing::decode_all;
using testing::delta_at;
using testing::expect_damage_is_corrupt;
using testing::get;
using testing::layout_of;
using testing::note;
using testing::OwnedBucket;
using testing::OwnedDelta;
using testing::put;
using testing::random_offsets;
using testing::reseal;
using testing::spec;

constexpr std::uint64_t kMaxBody = 1 << 26;

class FrameTest : public ::testing::TestWithParam<Encoding> {
 protected:
  const WeightLayout layout_ =
      layout_of({spec("a", DType::kBF16, {100'000}), spec("b", DType::kBF16, {1000}),
                 spec("c", DType::kBF16, {1ULL << 34}), spec("d", DType::kU8, {100})});
  const FrameContext context_{
      {{0x0123456789abcdef, 0xfedcba9876543210}, 7}, 6, layout_.signature(), GetParam(), 3, 11};
  Changes expected_;

  Bytes make() {
    std::mt19937_64 random(5);
    BucketBuilder builder(layout_, GetParam());
    const std::vector<OwnedDelta> deltas{delta_at(layout_, 1, 0, random_offsets(random, 101, 5)),
                                         delta_at(layout_, 0, 3, random_offsets(random, 3, 30'000)),
                                         delta_at(layout_, 2, 0, {0, 70'000}),
                                         delta_at(layout_, 2, 1ULL << 33, {4})};
    for (const OwnedDelta& delta : deltas) {
      EXPECT_TRUE(builder.add(delta.view()).ok());
      note(expected_, delta.view());
    }
    Bytes frame;
    EXPECT_TRUE(encode_frame(context_, builder.view(), frame).ok());
    return frame;
  }

  StatusCode decode(const Bytes& frame) {
    const Result<Frame> decoded = Frame::decode(frame, layout_, kMaxBody);
    if (!decoded.ok()) return decoded.status().code();
    return decode_all(layout_, decoded->bucket()).status().code();
  }

  // The frame with a plain body that a damage was done to.
  template <typename Damage>
  StatusCode with_damage(Damage damage) {
    Bytes frame = make();
    damage(frame);
    reseal(frame);
    return decode(frame);
  }
};

TEST_P(FrameTest, RoundTrips) {
  const Bytes frame = make();
  const Result<Frame> decoded = Frame::decode(frame, layout_, kMaxBody);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->info().context, context_);
  EXPECT_EQ(decoded->info().dtype, DType::kBF16);
  EXPECT_EQ(decoded->info().frame_bytes, frame.size());
  EXPECT_EQ(decoded->info().entries, 3U);
  EXPECT_EQ(decode_all(layout_, decoded->bucket()).value(), expected_);
}

TEST_P(FrameTest, EncodesTheSameBytesAgain) {
  const Bytes frame = make();
  const Result<Frame> decoded = Frame::decode(frame, layout_, kMaxBody);
  Bytes again(5, std::byte{1});  // appended behind what is there
  ASSERT_TRUE(encode_frame(context_, decoded->bucket(), again).ok());
  EXPECT_TRUE(std::equal(again.begin() + 5, again.end(), frame.begin(), frame.end()));
}

TEST_P(FrameTest, ViewsSurviveAMove) {
  const Bytes frame = make();
  Result<Frame> decoded = Frame::decode(frame, layout_, kMaxBody);
  const Frame moved = std::move(decoded.value());
  EXPECT_EQ(decode_all(layout_, moved.bucket()).value(), expected_);
}

TEST_P(FrameTest, WrittenIntoASinkItHasTheSameBytes) {
  const Bytes frame = make();
  const Result<Frame> decoded = Frame::decode(frame, layout_, kMaxBody);
  ASSERT_TRUE(decoded.ok());
  Bytes written;
  const auto append = [&](std::span<const std::byte> bytes) {
    written.insert(written.end(), bytes.begin(), bytes.end());
    return Status();
  };
  ASSERT_TRUE(write_frame(context_, decoded->bucket(), append).ok());
  EXPECT_EQ(written, frame);
}

TEST_P(FrameTest, EndsAtTheSinksFirstFailure) {
  const BucketBuilder builder(layout_, GetParam());
  int calls = 0;
  const auto refuse = [&](std::span<const std::byte>) -> Status {
    ++calls;
    return error(StatusCode::kNoSpace, "full");
  };
  EXPECT_EQ(write_frame(context_, builder.view(), refuse).status().code(), StatusCode::kNoSpace);
  EXPECT_EQ(calls, 1);
}

TEST_P(FrameTest, AnEmptyBucketIsAFrameToo) {
  BucketBuilder builder(layout_, GetParam());
  Bytes frame;
  ASSERT_TRUE(encode_frame(context_, builder.view(), frame).ok());
  const Result<Frame> decoded = Frame::decode(frame, layout_, kMaxBody);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_TRUE(decoded->bucket().entries.empty());
}

TEST_P(FrameTest, EveryTruncationExtensionAndFlipIsCorrupt) {
  expect_damage_is_corrupt(make(), [&](const Bytes& frame) { return decode(frame); });
}

TEST_P(FrameTest, HeaderAloneHasTheSizes) {
  const Bytes frame = make();
  const Result<FrameInfo> info = read_frame_header(std::span(frame).first(kFrameHeaderBytes));
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->frame_bytes, frame.size());
  EXPECT_EQ(info->context, context_);
}

TEST_P(FrameTest, AnotherLayoutIsRefused) {
  const Bytes frame = make();
  const WeightLayout other = layout_of({spec("a", DType::kBF16, {100'001})});
  EXPECT_EQ(Frame::decode(frame, other, kMaxBody).status().code(), StatusCode::kWrongLayout);
}

TEST_P(FrameTest, ABodyAboveTheBoundIsRefused) {
  const Bytes frame = make();
  const std::uint64_t body = read_frame_header(frame)->body_bytes();
  EXPECT_TRUE(Frame::decode(frame, layout_, body).ok());
  EXPECT_EQ(Frame::decode(frame, layout_, body - 1).status().code(), StatusCode::kCorrupt);
}

TEST_P(FrameTest, AnOlderAndANewerFormatAreUnsupported) {
  EXPECT_EQ(with_damage([](Bytes& frame) { put(frame, 8, std::uint16_t{1}); }),
            StatusCode::kUnsupported);
  EXPECT_EQ(with_damage([](Bytes& frame) { put(frame, 8, std::uint16_t{3}); }),
            StatusCode::kUnsupported);
}

TEST_P(FrameTest, HeaderFieldsThatDisagreeAreRefused) {
  const auto refuses = [this](std::size_t at, auto value) {
    EXPECT_EQ(with_damage([&](Bytes& frame) { put(frame, at, value); }), StatusCode::kCorrupt)
        << at;
  };
  refuses(10, std::uint8_t{3});                         // xor does not travel in frames
  refuses(10, std::uint8_t{5});                         // no such encoding
  refuses(11, std::uint8_t{99});                        // no such dtype
  refuses(11, static_cast<std::uint8_t>(DType::kF64));  // values do not divide
  refuses(12, std::uint32_t{4});                        // entries
  refuses(12, std::uint32_t{0xffffffff});
  refuses(16, std::uint64_t{1} << 62);  // frame bytes
  refuses(24, std::uint64_t{1} << 62);  // table bytes
  refuses(24, std::uint64_t{64});
  refuses(32, ~std::uint64_t{0});  // stored positions
  refuses(32, std::uint64_t{1});
  refuses(96, ~std::uint64_t{0});  // positions
  refuses(96, std::uint64_t{1} << 50);
  refuses(104, ~std::uint64_t{1});  // values
  refuses(104, std::uint64_t{1} << 50);
  refuses(112, ~std::uint64_t{0});  // stored values
  refuses(112, std::uint64_t{1});
}

TEST_P(FrameTest, ACodingThatIsNotTheEncodingsIsRefusedByTheEncoder) {
  BucketBuilder builder(layout_, GetParam());
  FrameContext context = context_;
  context.encoding = GetParam() == Encoding::kIndices ? Encoding::kDeltas : Encoding::kIndices;
  Bytes frame;
  EXPECT_EQ(encode_frame(context, builder.view(), frame).code(), StatusCode::kInvalidArgument);
  context.encoding = Encoding::kXor;
  EXPECT_EQ(encode_frame(context, builder.view(), frame).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(frame.empty());
}

INSTANTIATE_TEST_SUITE_P(Encodings, FrameTest,
                         ::testing::Values(Encoding::kIndices, Encoding::kDeltas,
                                           Encoding::kDeltasZstd),
                         [](const auto& test) {
                           return std::string(driftless::info(test.param).name);
                         });

// Damage to a body, behind good hashes.
class FrameBody : public ::testing::Test {
 protected:
  const WeightLayout layout_ =
      layout_of({spec("a", DType::kU8, {1000}), spec("b", DType::kU8, {1 << 20})});
  const FrameContext context_{{}, 0, layout_.signature(), Encoding::kDeltas, 0, 0};

  [[nodiscard]] Bytes encode(const OwnedBucket& bucket) const {
    Bytes frame;
    EXPECT_TRUE(encode_frame(context_, bucket.view(), frame).ok());
    return frame;
  }
  [[nodiscard]] OwnedBucket bucket() const {
    BucketBuilder builder(layout_, Encoding::kDeltas);
    EXPECT_TRUE(builder.add(delta_at(layout_, 0, 0, {1, 2, 3}).view()).ok());
    EXPECT_TRUE(builder.add(delta_at(layout_, 1, 0, {4, 5}).view()).ok());
    return OwnedBucket(builder.view());
  }
  StatusCode decode(const Bytes& frame) const {
    return Frame::decode(frame, layout_, kMaxBody).status().code();
  }
};

TEST_F(FrameBody, TableAndPaddingAreChecked) {
  const Bytes good = encode(bucket());
  constexpr std::size_t kTable = 128 + 16 + 8;
  ASSERT_EQ(good.size(), kTable + 2 * 64 + 16);
  ASSERT_EQ(decode(good), StatusCode::kOk);
  const auto refuses = [&](std::size_t at, auto value, StatusCode code = StatusCode::kCorrupt) {
    Bytes frame = good;
    put(frame, at, value);
    ASSERT_NE(frame, good) << at;
    reseal(frame);
    EXPECT_EQ(decode(frame), code) << at << ": " << +value;
  };
  refuses(kTable, std::uint32_t{2});     // no such tensor
  refuses(kTable, std::uint32_t{1});     // twice
  refuses(kTable + 4, std::uint8_t{0});  // encoding
  refuses(kTable + 4, std::uint8_t{6});
  refuses(kTable + 5, std::uint8_t{2});  // dtype
  refuses(kTable + 6, std::uint8_t{1});  // dimensions
  refuses(kTable + 6, std::uint8_t{255});
  refuses(kTable + 7, std::uint8_t{3});  // width
  refuses(kTable + 7, std::uint8_t{4});  // counts no longer agree
  refuses(kTable + 8, std::uint8_t{1});  // zstd
  refuses(kTable + 8, std::uint8_t{2});  // no such compression
  refuses(kTable + 9, std::uint8_t{1});
  refuses(kTable + 10, std::uint8_t{1}, StatusCode::kUnsupported);   // needs old values
  refuses(kTable + 10, std::uint8_t{2});                             // no such flag
  refuses(kTable + 11, std::uint8_t{1}, StatusCode::kUnsupported);   // further streams
  refuses(kTable + 12, std::uint32_t{0}, StatusCode::kUnsupported);  // a scale
  refuses(kTable + 16, std::uint64_t{1});                            // first unit of a delta
  refuses(kTable + 24, std::uint64_t{0});                            // an empty entry
  refuses(kTable + 24, std::uint64_t{4});                            // count
  refuses(kTable + 24, ~std::uint64_t{0});
  refuses(kTable + 24 + 64, std::uint64_t{3});
  refuses(kTable + 32, std::uint64_t{7});  // stored positions
  refuses(kTable + 32, ~std::uint64_t{0});
  refuses(kTable + 40, std::uint64_t{2});  // stored values
  refuses(kTable + 40, ~std::uint64_t{0});
  refuses(128 + 10, std::uint8_t{1});  // padding of the positions
  refuses(128 + 15, std::uint8_t{1});
  refuses(144 + 5, std::uint8_t{1});  // padding of the values
}

TEST_F(FrameBody, AWidthThatNoGapNeedsIsRefused) {
  OwnedBucket wide = bucket();
  wide.entries[1] = {1, 4, 6, 14, 3, 5};
  wide.positions.resize(14);
  const std::uint32_t gaps[] = {9, 65'535};
  std::memcpy(wide.positions.data() + 6, gaps, 8);
  EXPECT_EQ(decode(encode(wide)), StatusCode::kCorrupt);
  const std::uint32_t needed[] = {9, 65'536};
  std::memcpy(wide.positions.data() + 6, needed, 8);
  EXPECT_EQ(decode(encode(wide)), StatusCode::kOk);
}

TEST_F(FrameBody, TheEncoderRefusesABucketThatDoesNotTile) {
  Bytes frame(3);
  OwnedBucket hole = bucket();
  hole.entries[1].value_begin += 1;
  EXPECT_EQ(encode_frame(context_, hole.view(), frame).code(), StatusCode::kInvalidArgument);
  OwnedBucket rest = bucket();
  rest.values.push_back({});
  EXPECT_EQ(encode_frame(context_, rest.view(), frame).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(frame.size(), 3U);
}

TEST_F(FrameBody, AZstdStreamOfOtherContentIsRefused) {
  FrameContext context = context_;
  context.encoding = Encoding::kDeltasZstd;
  BucketBuilder builder(layout_, Encoding::kDeltas);
  std::vector<std::uint32_t> offsets(400);
  for (std::uint32_t k = 0; k < offsets.size(); ++k) offsets[k] = 2 * k;
  OwnedDelta delta = delta_at(layout_, 0, 0, offsets);
  ASSERT_TRUE(builder.add(delta.view()).ok());
  Bytes frame;
  ASSERT_TRUE(encode_frame(context, builder.view(), frame).ok());
  ASSERT_EQ(decode(frame), StatusCode::kOk);
  const auto stored = get<std::uint64_t>(frame, 32);
  ASSERT_LT(stored, 800U);                          // equal gaps
  EXPECT_EQ(get<std::uint64_t>(frame, 112), 400U);  // random values are stored as they are
  const std::size_t table = frame.size() - 16 - 64;
  EXPECT_EQ(get<std::uint8_t>(frame, table + 8), 1);
  EXPECT_EQ(get<std::uint8_t>(frame, table + 9), 0);
  const Bytes other = zstd_compress(Bytes(799)).value();
  ASSERT_LE(other.size(), stored);
  std::ranges::copy(other, frame.begin() + 128);
  reseal(frame);
  EXPECT_EQ(decode(frame), StatusCode::kCorrupt);
}

TEST_F(FrameBody, ZstdIsSmallerForManyChanges) {
  BucketBuilder builder(layout_, Encoding::kDeltas);
  std::mt19937_64 random(1);
  ASSERT_TRUE(builder.add(delta_at(layout_, 1, 0, random_offsets(random, 10'000, 50)).view()).ok());
  FrameContext context = context_;
  context.encoding = Encoding::kDeltasZstd;
  Bytes frame;
  ASSERT_TRUE(encode_frame(context, builder.view(), frame).ok());
  EXPECT_LT(frame.size(), builder.size_bytes());
  EXPECT_EQ(read_frame_header(frame)->body_bytes(), 64U + 20'000 + 10'000);
}

}  // namespace
}  // namespace driftless
