// SPDX-License-Identifier: Apache-2.0
// Full frames (frame.h): runs of whole units instead of a bucket.
#include <gtest/gtest.h>

#include "formats/frame.h"
#include "support/delta_model.h"
#include "support/frame_bytes.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::expect_damage_is_corrupt;
using testing::layout_of;
using testing::put;
using testing::random_bytes;
using testing::reseal;
using testing::spec;

constexpr std::uint64_t kMaxFullBody = 1 << 26;
constexpr std::size_t kValues = kFrameHeaderBytes;
constexpr std::size_t kTable = kValues + 24;  // of three runs
constexpr std::size_t kFirsts = kTable + 16, kCounts = kTable + 24;
constexpr std::size_t kRow = kFrameRowBytes;

class FullFrame : public ::testing::Test {
 protected:
  [[nodiscard]] DenseRun run(std::uint32_t tensor, std::uint64_t first, std::size_t units) const {
    return {tensor, first, std::span(data_).subspan(first % 7, units * 2)};
  }
  // 10 units of `a` in two runs, and one past the 4 billionth of `c`: 22 bytes of values.
  [[nodiscard]] std::vector<DenseRun> runs() const {
    return {run(0, 0, 4), run(0, 5, 6), run(2, 1ULL << 33, 1)};
  }
  [[nodiscard]] Bytes make() const {
    Bytes frame;
    EXPECT_TRUE(encode_full_frame(context_, layout_, DType::kBF16, runs(), frame).ok());
    return frame;
  }
  [[nodiscard]] StatusCode decode(const Bytes& frame) const {
    return Frame::decode(frame, layout_, kMaxFullBody).status().code();
  }
  [[nodiscard]] StatusCode encode(const std::vector<DenseRun>& runs,
                                  DType dtype = DType::kBF16) const {
    Bytes frame(3);
    const StatusCode code = encode_full_frame(context_, layout_, dtype, runs, frame).code();
    EXPECT_TRUE(code == StatusCode::kOk || frame.size() == 3);
    return code;
  }
  static void expect_same(std::span<const DenseRun> found, std::span<const DenseRun> expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].tensor, expected[i].tensor);
      EXPECT_EQ(found[i].first_unit, expected[i].first_unit);
      EXPECT_TRUE(std::ranges::equal(found[i].bytes, expected[i].bytes));
    }
  }

  const WeightLayout layout_ =
      layout_of({spec("a", DType::kBF16, {100}), spec("b", DType::kU8, {100}),
                 spec("c", DType::kBF16, {1ULL << 34}), spec("d", DType::kF4, {64})});
  const FrameContext context_{{{0x0123456789abcdef, 0xfedcba9876543210}, 7},
                              0,
                              layout_.signature(),
                              Encoding::kFull,
                              3,
                              11};
  std::mt19937_64 random_{9};
  const Bytes data_ = random_bytes(random_, 1000);
};

TEST_F(FullFrame, RoundTrips) {
  const Bytes frame = make();
  ASSERT_EQ(frame.size(), kTable + 3 * kRow + kFrameTrailerBytes);
  Result<Frame> decoded = Frame::decode(frame, layout_, kMaxFullBody);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded->info().context, context_);
  EXPECT_EQ(decoded->info().dtype, DType::kBF16);
  const Frame moved = std::move(decoded.value());
  EXPECT_TRUE(moved.dense());
  expect_same(moved.runs(), runs());
  EXPECT_TRUE(
      moved.bucket().entries.empty());  // who does not ask whether it is dense reads nothing
  Bytes again(5, std::byte{1});         // appended behind what is there
  ASSERT_TRUE(encode_full_frame(context_, layout_, DType::kBF16, moved.runs(), again).ok());
  EXPECT_TRUE(std::equal(again.begin() + 5, again.end(), frame.begin(), frame.end()));
}

TEST_F(FullFrame, WithoutRunsAndOfPackedTypes) {
  Bytes frame;
  ASSERT_TRUE(encode_full_frame(context_, layout_, DType::kBF16, {}, frame).ok());
  EXPECT_EQ(frame.size(), kFrameHeaderBytes + kFrameTrailerBytes);
  EXPECT_TRUE(Frame::decode(frame, layout_, 0)->runs().empty());

  frame.clear();
  const std::vector<DenseRun> packed{{3, 1, std::span(data_).first(31)}};  // 62 elements
  ASSERT_TRUE(encode_full_frame(context_, layout_, DType::kF4, packed, frame).ok());
  expect_same(Frame::decode(frame, layout_, kMaxFullBody)->runs(), packed);
}

TEST_F(FullFrame, ADeltaHasNoRuns) {
  FrameContext context = context_;
  context.encoding = Encoding::kDeltas;
  BucketBuilder builder(layout_, Encoding::kDeltas);
  ASSERT_TRUE(builder.add(testing::delta_at(layout_, 0, 0, {1, 2}).view()).ok());
  Bytes frame;
  ASSERT_TRUE(encode_frame(context, builder.view(), frame).ok());
  const Result<Frame> decoded = Frame::decode(frame, layout_, kMaxFullBody);
  EXPECT_FALSE(decoded->dense());
  EXPECT_TRUE(decoded->runs().empty());
}

TEST_F(FullFrame, EveryTruncationExtensionAndFlipIsCorrupt) {
  expect_damage_is_corrupt(make(), [&](const Bytes& frame) { return decode(frame); });
}

TEST_F(FullFrame, DamageWithMatchingHashesIsRefused) {
  const Bytes good = make();
  const auto refuses = [&](std::size_t at, auto value) {
    Bytes frame = good;
    put(frame, at, value);
    ASSERT_NE(frame, good) << at;
    reseal(frame);
    EXPECT_EQ(decode(frame), StatusCode::kCorrupt) << at;
  };
  for (std::uint8_t encoding = 0; encoding < 9; ++encoding) {
    if (encoding != 6) refuses(10, encoding);  // the same body is no delta
  }
  refuses(11, static_cast<std::uint8_t>(DType::kU8));  // dtype of the tensors
  refuses(11, static_cast<std::uint8_t>(DType::kF16));
  refuses(12, std::uint32_t{2});   // runs
  refuses(96, std::uint64_t{23});  // positions
  refuses(96, std::uint64_t{16});
  refuses(104, std::uint64_t{20});  // values
  refuses(104, std::uint64_t{24});
  refuses(112, std::uint64_t{20});       // stored values
  refuses(kTable, std::uint32_t{1});     // tensor of another dtype
  refuses(kTable, std::uint32_t{2});     // tensors descend
  refuses(kTable, std::uint32_t{4});     // no such tensor
  refuses(kTable + 7, std::uint8_t{4});  // width
  refuses(kCounts, std::uint64_t{0});    // an empty run
  refuses(kCounts, std::uint64_t{5});    // runs adjoin; values past the end
  refuses(kCounts, ~std::uint64_t{0});
  refuses(kCounts + 2 * kRow, std::uint64_t{2});  // values past the end
  refuses(kFirsts, std::uint64_t{1});             // adjoins the next
  refuses(kFirsts, std::uint64_t{3});             // overlaps
  refuses(kFirsts, std::uint64_t{50});            // descends
  refuses(kFirsts + kRow, std::uint64_t{4});      // adjoins the one before
  refuses(kFirsts + kRow, std::uint64_t{95});     // past the tensor's end
  refuses(kFirsts + kRow, ~std::uint64_t{0});
  refuses(kFirsts + 2 * kRow, 1ULL << 34);
  refuses(kValues + 22, std::uint8_t{1});  // padding
}

TEST_F(FullFrame, ARunMayReachTheEndOfItsTensor) {
  EXPECT_EQ(encode({run(0, 90, 10)}), StatusCode::kOk);
  EXPECT_EQ(encode({run(0, 0, 100), run(2, (1ULL << 34) - 1, 1)}), StatusCode::kOk);
}

TEST_F(FullFrame, TheEncoderRefusesWhatTheDecoderWould) {
  const StatusCode invalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(encode({run(0, 90, 11)}), invalid);
  EXPECT_EQ(encode({run(0, 100, 1)}), invalid);
  EXPECT_EQ(encode({run(0, ~0ULL, 1)}), invalid);
  EXPECT_EQ(encode({run(4, 0, 1)}), invalid);
  EXPECT_EQ(encode({run(0, 0, 0)}), invalid);
  EXPECT_EQ(encode({{0, 0, std::span(data_).first(3)}}), invalid);
  EXPECT_EQ(encode({run(0, 0, 1)}, DType::kF16), invalid);
  EXPECT_EQ(encode({run(0, 0, 4), run(0, 4, 1)}), invalid);
  EXPECT_EQ(encode({run(0, 0, 4), run(0, 3, 9)}), invalid);
  EXPECT_EQ(encode({run(2, 0, 4), run(0, 0, 1)}), invalid);
  FrameContext context = context_;
  context.encoding = Encoding::kDeltas;
  Bytes frame;
  EXPECT_EQ(encode_full_frame(context, layout_, DType::kBF16, runs(), frame).code(), invalid);
  EXPECT_EQ(encode_frame(context_, BucketBuilder(layout_, Encoding::kDeltas).view(), frame).code(),
            invalid);
}

TEST_F(FullFrame, AnotherLayoutOrABodyAboveTheBoundIsRefused) {
  const Bytes frame = make();
  const WeightLayout other = layout_of({spec("a", DType::kBF16, {100})});
  EXPECT_EQ(Frame::decode(frame, other, kMaxFullBody).status().code(), StatusCode::kWrongLayout);
  const std::uint64_t body = read_frame_header(frame)->body_bytes();
  EXPECT_TRUE(Frame::decode(frame, layout_, body).ok());
  EXPECT_EQ(Frame::decode(frame, layout_, body - 1).status().code(), StatusCode::kCorrupt);
}

TEST(FrameFile, NamesSortByRankAndIndex) {
  EXPECT_EQ(frame_file_name(0, 0), "rank0000_frame000000.frame");
  EXPECT_EQ(frame_file_name(12, 345), "rank0012_frame000345.frame");
}

}  // namespace
}  // namespace driftless
