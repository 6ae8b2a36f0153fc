// SPDX-License-Identifier: Apache-2.0
#include "formats/bucket.h"

#include <gtest/gtest.h>

#include <limits>

#include "support/delta_model.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::Changes;
using testing::decode_all;
using testing::delta_at;
using testing::layout_of;
using testing::note;
using testing::OwnedBucket;
using testing::OwnedDelta;
using testing::random_offsets;
using testing::spec;

template <typename T>
std::vector<T> words(std::span<const std::byte> bytes) {
  std::vector<T> result(bytes.size() / sizeof(T));
  std::memcpy(result.data(), bytes.data(), result.size() * sizeof(T));
  return result;
}

template <typename T>
Bytes raw(std::initializer_list<T> values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

TEST(BucketBuilder, WritesTheBytesOfTheFormat) {
  const WeightLayout layout = layout_of({spec("a", DType::kBF16, {1000})});
  const OwnedDelta delta = delta_at(layout, 0, 10, {0, 1, 5, 900});
  BucketBuilder indices(layout, Encoding::kIndices), gaps(layout, Encoding::kDeltas);
  ASSERT_TRUE(indices.add(delta.view()).ok());
  ASSERT_TRUE(gaps.add(delta.view()).ok());
  EXPECT_EQ(words<std::int32_t>(indices.view().positions),
            (std::vector<std::int32_t>{10, 11, 15, 910}));
  EXPECT_EQ(words<std::uint16_t>(gaps.view().positions),
            (std::vector<std::uint16_t>{10, 0, 3, 894}));
  EXPECT_TRUE(std::ranges::equal(gaps.view().values, delta.values));
  EXPECT_EQ(gaps.size_bytes(), 4U * 2 + 4 * 2);
}

TEST(BucketBuilder, RoundTripsEveryTypeAndEncoding) {
  for (const Encoding encoding : {Encoding::kIndices, Encoding::kDeltas, Encoding::kDeltasZstd}) {
    for (const DTypeInfo& dtype : all_dtypes()) {
      const WeightLayout layout =
          layout_of({spec("a", dtype.dtype, {1000, 8}), spec("b", dtype.dtype, {8}),
                     spec("c", dtype.dtype, {64, 8})});
      BucketBuilder builder(layout, encoding);
      Changes expected;
      for (const auto& delta : {delta_at(layout, 2, 3, {0, 7, 9}), delta_at(layout, 0, 0, {0}),
                                delta_at(layout, 0, 1, {0, 1, 2}), delta_at(layout, 1, 3, {0})}) {
        ASSERT_TRUE(builder.add(delta.view()).ok());
        note(expected, delta.view());
      }
      EXPECT_EQ(builder.view().entries.size(), 3U);
      EXPECT_EQ(decode_all(layout, builder.view()).value(), expected) << dtype.name;
    }
  }
}

TEST(BucketBuilder, AgreesWithTheModelOnRandomDeltas) {
  std::mt19937_64 random(7);
  const WeightLayout layout =
      layout_of({spec("a", DType::kBF16, {3'000'000'000}), spec("b", DType::kBF16, {100'000}),
                 spec("c", DType::kBF16, {1ULL << 33})});
  BucketBuilder builder(layout, Encoding::kDeltas), indices(layout, Encoding::kIndices);
  for (int round = 0; round < 60; ++round) {
    builder.clear();
    indices.clear();
    Changes expected;
    for (const std::uint32_t tensor : {2U, 0U, 1U}) {
      std::uint64_t origin = random() % 1000;
      for (std::uint64_t piece = random() % 4; piece > 0; --piece) {
        const std::uint32_t max_gap = std::array{2U, 300U, 70'000U, 1U << 20}[random() % 4];
        const std::size_t count = 1 + random() % 200;
        const auto offsets = random_offsets(random, count, tensor == 1 ? 10 : max_gap);
        const OwnedDelta delta = delta_at(layout, tensor, origin, offsets, random());
        ASSERT_TRUE(builder.add(delta.view()).ok());
        ASSERT_TRUE(indices.add(delta.view()).ok());
        note(expected, delta.view());
        origin += offsets.back() + 1 + (tensor == 2 && random() % 4 == 0 ? 1ULL << 31 : 0);
      }
    }
    ASSERT_EQ(decode_all(layout, builder.view()).value(), expected);
    ASSERT_EQ(decode_all(layout, indices.view()).value(), expected);
  }
}

TEST(BucketBuilder, GapsTakeTheLeastWidth) {
  const WeightLayout layout = layout_of({spec("t", DType::kU8, {1ULL << 40})});
  const struct {
    std::uint64_t first, second;
    unsigned width;
  } cases[] = {{65535, 65535, 2},  {65536, 0, 4},       {0, 65536, 4},      {0xffffffff, 1, 4},
               {0, 0xffffffff, 4}, {0x100000000, 0, 8}, {0, 0x100000000, 8}};
  for (const auto& gaps : cases) {
    BucketBuilder builder(layout, Encoding::kDeltas);
    Changes expected;
    const std::uint64_t first = gaps.first, second = first + 1 + gaps.second;
    for (const std::uint64_t position : {first, second}) {
      const OwnedDelta delta = delta_at(layout, 0, position, {0}, position);
      ASSERT_TRUE(builder.add(delta.view()).ok());
      note(expected, delta.view());
    }
    ASSERT_EQ(builder.view().entries.size(), 1U);
    EXPECT_EQ(builder.view().entries[0].position_bytes, gaps.width);
    EXPECT_EQ(builder.view().positions.size(), 2U * gaps.width);
    EXPECT_EQ(decode_all(layout, builder.view()).value(), expected);
  }
}

TEST(BucketBuilder, WideningOneEntryLeavesTheOthers) {
  const WeightLayout layout =
      layout_of({spec("a", DType::kU8, {10}), spec("b", DType::kU8, {1 << 20})});
  BucketBuilder builder(layout, Encoding::kDeltas);
  ASSERT_TRUE(builder.add(delta_at(layout, 0, 0, {1, 3}).view()).ok());
  ASSERT_TRUE(builder.add(delta_at(layout, 1, 0, {1, 3}).view()).ok());
  ASSERT_TRUE(builder.add(delta_at(layout, 1, 4, {0, 900'000}).view()).ok());
  EXPECT_EQ(builder.view().entries[0].position_bytes, 2U);
  EXPECT_EQ(builder.view().entries[1].position_bytes, 4U);
  EXPECT_EQ(words<std::uint32_t>(builder.view().positions.subspan(4)),
            (std::vector<std::uint32_t>{1, 1, 0, 899'999}));
}

TEST(BucketBuilder, IndicesAre64BitOnlyWhereTheTensorNeedsIt) {
  const WeightLayout layout =
      layout_of({spec("a", DType::kU8, {1ULL << 31}), spec("b", DType::kU8, {(1ULL << 31) + 1}),
                 spec("c", DType::kU8, {1ULL << 33})});
  BucketBuilder builder(layout, Encoding::kIndices);
  Changes expected;
  for (const auto& delta :
       {delta_at(layout, 0, (1ULL << 31) - 1, {0}), delta_at(layout, 1, 1ULL << 31, {0}),
        delta_at(layout, 2, 0, {5, 0xfffffffe}), delta_at(layout, 2, (1ULL << 33) - 2, {0, 1})}) {
    ASSERT_TRUE(builder.add(delta.view()).ok());
    note(expected, delta.view());
  }
  EXPECT_EQ(builder.view().entries[0].position_bytes, 4U);
  EXPECT_EQ(builder.view().entries[1].position_bytes, 8U);
  EXPECT_EQ(builder.view().entries[2].position_bytes, 8U);
  EXPECT_EQ(decode_all(layout, builder.view()).value(), expected);
}

class BuilderRefuses : public ::testing::TestWithParam<Encoding> {
 protected:
  const WeightLayout layout_ =
      layout_of({spec("a", DType::kBF16, {100'000}), spec("b", DType::kBF16, {10}),
                 spec("c", DType::kF32, {10})});
  BucketBuilder builder_{layout_, GetParam()};

  void SetUp() override { ASSERT_TRUE(builder_.add(delta_at(layout_, 0, 5, {0, 1}).view()).ok()); }
  // The delta is refused, and the bucket is as before.
  void refuses(const OwnedDelta& delta) {
    const OwnedBucket before(builder_.view());
    EXPECT_EQ(builder_.add(delta.view()).code(), StatusCode::kInvalidArgument);
    const BucketView after = builder_.view();
    EXPECT_TRUE(std::ranges::equal(after.positions, before.positions));
    EXPECT_TRUE(std::ranges::equal(after.values, before.values));
    EXPECT_EQ(after.entries.size(), before.entries.size());
    EXPECT_TRUE(check_bucket(layout_, after).ok());
    EXPECT_EQ(after.entries.back().position_bytes, before.entries.back().position_bytes);
  }
};

TEST_P(BuilderRefuses, PositionsThatDoNotAscend) {
  refuses(delta_at(layout_, 0, 6, {0}));
  refuses(delta_at(layout_, 0, 10, {0, 3, 3}));
  refuses(delta_at(layout_, 0, 10, {0, 9, 3}));
  refuses(delta_at(layout_, 0, 10, {0, 4'294'967'294U, 1}));
  refuses(delta_at(layout_, 0, 10, {80'000, 9, 10}));
}
TEST_P(BuilderRefuses, PositionsPastTheEnd) {
  refuses(delta_at(layout_, 0, 10, {99'990}));
  refuses(delta_at(layout_, 0, 100'000, {0}));
  refuses(delta_at(layout_, 1, ~0ULL, {1}));
}
TEST_P(BuilderRefuses, AnotherTypeOrUnit) {
  EXPECT_FALSE(builder_.accepts(delta_at(layout_, 2, 0, {0}).view()));
  refuses(delta_at(layout_, 2, 0, {0}));
  OwnedDelta bytes = delta_at(layout_, 0, 10, {0});
  bytes.unit_bytes = 1;
  refuses(bytes);
  OwnedDelta unknown = delta_at(layout_, 0, 10, {0});
  unknown.tensor = 3;
  refuses(unknown);
}
TEST_P(BuilderRefuses, ATensorThatComesBack) {
  ASSERT_TRUE(builder_.add(delta_at(layout_, 1, 0, {0}).view()).ok());
  refuses(delta_at(layout_, 0, 10, {0}));
  builder_.clear();
  EXPECT_TRUE(builder_.empty());
  EXPECT_TRUE(builder_.add(delta_at(layout_, 0, 10, {0}).view()).ok());
}
TEST_P(BuilderRefuses, NothingForAnEmptyDelta) {
  EXPECT_TRUE(builder_.add(delta_at(layout_, 1, 0, {}).view()).ok());
  EXPECT_EQ(builder_.view().entries.size(), 1U);
}
INSTANTIATE_TEST_SUITE_P(Codings, BuilderRefuses,
                         ::testing::Values(Encoding::kIndices, Encoding::kDeltas));

TEST(BucketBuilder, AnotherTypeMayComeAfterClear) {
  const WeightLayout layout = layout_of({spec("a", DType::kU8, {9}), spec("b", DType::kF64, {9})});
  BucketBuilder builder(layout, Encoding::kDeltas);
  ASSERT_TRUE(builder.add(delta_at(layout, 0, 0, {1}).view()).ok());
  builder.clear();
  ASSERT_TRUE(builder.add(delta_at(layout, 1, 0, {1}).view()).ok());
  EXPECT_EQ(builder.view().dtype, DType::kF64);
  EXPECT_EQ(builder.view().values.size(), 8U);
}

class CheckBucket : public ::testing::Test {
 protected:
  const WeightLayout layout_ =
      layout_of({spec("a", DType::kBF16, {100}), spec("b", DType::kBF16, {100}),
                 spec("c", DType::kF16, {100})});
  OwnedBucket bucket_ = [this] {
    BucketBuilder builder(layout_, Encoding::kDeltas);
    EXPECT_TRUE(builder.add(delta_at(layout_, 0, 0, {1, 2, 3}).view()).ok());
    EXPECT_TRUE(builder.add(delta_at(layout_, 1, 0, {4, 5}).view()).ok());
    return OwnedBucket(builder.view());
  }();

  [[nodiscard]] StatusCode check() const { return check_bucket(layout_, bucket_.view()).code(); }
};

TEST_F(CheckBucket, AcceptsWhatWasBuilt) { EXPECT_EQ(check(), StatusCode::kOk); }
TEST_F(CheckBucket, RefusesATensorThatIsNotThere) {
  bucket_.entries[0].tensor = 3;
  EXPECT_EQ(check(), StatusCode::kCorrupt);
}
TEST_F(CheckBucket, RefusesATensorOfAnotherType) {
  bucket_.entries[0].tensor = 2;
  EXPECT_EQ(check(), StatusCode::kWrongLayout);
}
TEST_F(CheckBucket, RefusesATensorTwice) {
  bucket_.entries[1].tensor = 0;
  EXPECT_EQ(check(), StatusCode::kCorrupt);
}
TEST_F(CheckBucket, RefusesHolesOverlapsAndLeftovers) {
  const OwnedBucket good = bucket_;
  const auto refuses = [&](auto damage) {
    bucket_ = good;
    damage();
    EXPECT_EQ(check(), StatusCode::kCorrupt);
  };
  refuses([&] { bucket_.entries[1].position_begin += 2; });
  refuses([&] { bucket_.entries[1].value_begin -= 1; });
  refuses([&] { bucket_.entries[1].value_end += 1; });
  refuses([&] { bucket_.entries[1].value_end = ~0ULL; });
  refuses([&] { bucket_.entries[1].position_end = ~0ULL; });
  refuses([&] { std::swap(bucket_.entries[0], bucket_.entries[1]); });
  refuses([&] { bucket_.entries.pop_back(); });
  refuses([&] { bucket_.positions.resize(bucket_.positions.size() + 2); });
  refuses([&] { bucket_.values.resize(bucket_.values.size() + 1); });
  refuses([&] { bucket_.values.resize(bucket_.values.size() - 1); });
  refuses([&] {  // begins past its end
    std::swap(bucket_.entries[0].value_begin, bucket_.entries[0].value_end);
  });
}
TEST_F(CheckBucket, RefusesEmptyEntriesWidthsAndCodings) {
  const OwnedBucket good = bucket_;
  bucket_.entries.insert(bucket_.entries.begin(), {1, 2, 0, 0, 0, 0});
  EXPECT_EQ(check(), StatusCode::kCorrupt);
  for (const unsigned width : {0U, 1U, 3U, 16U}) {
    bucket_ = good;
    bucket_.entries[0].position_bytes = width;
    EXPECT_EQ(check(), StatusCode::kCorrupt) << width;
  }
  bucket_ = good;
  bucket_.coding = Encoding::kIndices;  // gaps of 2 bytes are no indices
  EXPECT_EQ(check(), StatusCode::kCorrupt);
  bucket_.coding = Encoding::kXor;
  EXPECT_EQ(check(), StatusCode::kCorrupt);
}
TEST_F(CheckBucket, RefusesMoreChangesThanUnits) {
  bucket_.entries = {{0, 2, 0, 202, 0, 101}};
  bucket_.positions.resize(202);
  bucket_.values.resize(202);
  EXPECT_EQ(check(), StatusCode::kCorrupt);
}

// One entry with these positions, decoded; the code of the first failure.
template <typename T>
StatusCode cursor_code(Encoding coding, std::uint64_t units, std::initializer_list<T> positions) {
  const WeightLayout layout = layout_of({spec("t", DType::kU8, {units})});
  const Bytes bytes = raw(positions), values(positions.size());
  const BucketEntry entry{0, sizeof(T), 0, bytes.size(), 0, values.size()};
  const BucketView bucket{coding, DType::kU8, std::span(&entry, 1), bytes, values};
  return decode_all(layout, bucket).status().code();
}

TEST(EntryCursor, HoldsGapsToTheTensor) {
  using G2 = std::uint16_t;
  using G8 = std::uint64_t;
  const auto deltas = Encoding::kDeltas;
  EXPECT_EQ(cursor_code<G2>(deltas, 10, {3, 5}), StatusCode::kOk);
  EXPECT_EQ(cursor_code<G2>(deltas, 10, {3, 6}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<G2>(deltas, 10, {10}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<std::uint32_t>(deltas, 10, {3, 0xffffffff}), StatusCode::kCorrupt);
  constexpr std::uint64_t kHuge = 1ULL << 59;
  EXPECT_EQ(cursor_code<G8>(deltas, kHuge, {kHuge - 2, 0}), StatusCode::kOk);
  EXPECT_EQ(cursor_code<G8>(deltas, kHuge, {kHuge - 1, 0}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<G8>(deltas, kHuge, {0, 0, kHuge - 3}), StatusCode::kOk);
  EXPECT_EQ(cursor_code<G8>(deltas, kHuge, {5, ~0ULL}), StatusCode::kCorrupt);  // p + gap + 1 wraps
  EXPECT_EQ(cursor_code<G8>(deltas, kHuge, {5, ~0ULL - 3}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<G8>(deltas, kHuge, {~0ULL}), StatusCode::kCorrupt);
}

TEST(EntryCursor, HoldsIndicesToTheTensor) {
  using I4 = std::int32_t;
  using I8 = std::int64_t;
  const auto indices = Encoding::kIndices;
  EXPECT_EQ(cursor_code<I4>(indices, 10, {0, 9}), StatusCode::kOk);
  EXPECT_EQ(cursor_code<I4>(indices, 10, {0, 10}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I4>(indices, 10, {3, 3}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I4>(indices, 10, {3, 2, 4}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I4>(indices, 10, {-1}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I4>(indices, 1ULL << 31, {3, -1}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I4>(indices, 1ULL << 31, {3, -1, 5}), StatusCode::kCorrupt);
  constexpr I8 kUnits = I8{1} << 34;
  EXPECT_EQ(cursor_code<I8>(indices, kUnits, {0, 0xffffffffLL, kUnits - 1}), StatusCode::kOk);
  EXPECT_EQ(cursor_code<I8>(indices, kUnits, {0, kUnits}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I8>(indices, kUnits, {5, 4}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I8>(indices, kUnits, {5, -1}), StatusCode::kCorrupt);
  EXPECT_EQ(cursor_code<I8>(indices, kUnits, {kUnits - 1, 3}), StatusCode::kCorrupt);
}

TEST(EntryCursor, PiecesAreBoundedAndFailuresStay) {
  const WeightLayout layout = layout_of({spec("t", DType::kU8, {1 << 20})});
  const std::size_t count = 40'000;
  Bytes positions(count * 2), values(count);
  const std::uint16_t far = 0xffff;
  std::memcpy(positions.data() + 2 * (count - 1), &far, 2);
  std::memcpy(positions.data() + 2 * (count - 2), &far, 2);
  const BucketEntry entry{0, 2, 0, positions.size(), 0, count};
  const BucketView bucket{Encoding::kDeltas, DType::kU8, std::span(&entry, 1), positions, values};
  EntryCursor cursor(layout, bucket, entry);
  std::size_t seen = 0;
  for (Result<DeltaView> piece = cursor.next(); piece->count() > 0; piece = cursor.next()) {
    EXPECT_LE(piece->count(), 16384U);
    EXPECT_EQ(piece->values, values.data() + seen);
    seen += piece->count();
  }
  EXPECT_EQ(seen, count);

  const WeightLayout smaller = layout_of({spec("t", DType::kU8, {60'000})});
  EntryCursor refused(smaller, bucket, entry);
  EXPECT_TRUE(refused.next().ok());
  EXPECT_TRUE(refused.next().ok());
  EXPECT_FALSE(refused.next().ok());
  EXPECT_FALSE(refused.next().ok());
}

}  // namespace
}  // namespace driftless
