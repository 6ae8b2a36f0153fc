// SPDX-License-Identifier: Apache-2.0
#include "formats/tensor_patcher.h"

#include <gtest/gtest.h>

#include "support/delta_model.h"
#include "support/zstd_bytes.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::delta_at;
using testing::layout_of;
using testing::OwnedBucket;
using testing::OwnedDelta;
using testing::random_bytes;
using testing::random_offsets;
using testing::spec;

ByteSink into(Bytes& out) {
  return [&out](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return Status();
  };
}

// Patches all of `old_bytes` in chunks of `chunk` bytes; the new bytes, or the first failure.
Result<Bytes> patch_all(TensorPatcher& patcher, Bytes old_bytes, std::size_t chunk) {
  for (std::size_t at = 0; at < old_bytes.size(); at += chunk) {
    const auto piece = std::span(old_bytes).subspan(at, std::min(chunk, old_bytes.size() - at));
    DRIFTLESS_RETURN_IF_ERROR(patcher.patch(at, piece));
  }
  DRIFTLESS_RETURN_IF_ERROR(patcher.finish());
  return old_bytes;
}

StatusCode code_of(Result<std::unique_ptr<TensorPatcher>> patcher, const TensorSpec& tensor) {
  if (!patcher.ok()) return patcher.status().code();
  return patch_all(**patcher, Bytes(tensor.size_bytes), 4096).status().code();
}

struct Pair {
  TensorSpec tensor;
  Bytes old_bytes, new_bytes;
  OwnedDelta bytes;  // the delta, byte by byte
};

Pair make_pair(std::size_t size, std::size_t changes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Pair pair{spec("model.w", DType::kU8, {size}), random_bytes(random, size), {}, {}};
  pair.new_bytes = pair.old_bytes;
  for (std::size_t k = 0; k < changes; ++k) pair.new_bytes[random() % size] ^= std::byte{5};
  for (std::size_t at = 0; at < size; ++at) {
    if (pair.old_bytes[at] == pair.new_bytes[at]) continue;
    pair.bytes.offsets.push_back(static_cast<std::uint32_t>(at));
    pair.bytes.values.push_back(pair.new_bytes[at]);
  }
  return pair;
}

Bytes encode_overwrite(const Pair& pair, unsigned workers = 0) {
  Bytes payload;
  auto encoder =
      OverwriteEncoder::create(pair.tensor, pair.bytes.offsets.size(), workers, into(payload));
  EXPECT_TRUE(encoder.ok());
  // In two deltas of different origins, as a caller that works in stretches has them.
  const std::size_t half = pair.bytes.offsets.size() / 2;
  OwnedDelta first = pair.bytes, second;
  first.offsets.resize(half);
  for (std::size_t k = half; k < pair.bytes.offsets.size(); ++k) {
    second.origin = pair.bytes.offsets[half];
    second.offsets.push_back(pair.bytes.offsets[k] - static_cast<std::uint32_t>(second.origin));
    second.values.push_back(pair.bytes.values[k]);
  }
  for (const OwnedDelta* delta : {&first, &second}) {
    EXPECT_TRUE(encoder->add_positions(delta->view()).ok());
  }
  for (const OwnedDelta* delta : {&first, &second}) {
    EXPECT_TRUE(encoder->add_values(delta->view()).ok());
  }
  EXPECT_TRUE(encoder->finish().ok());
  return payload;
}

TEST(XorPayload, TurnsOldIntoNewWhateverTheChunks) {
  for (const std::size_t size : {0UL, 1UL, 7UL, 1000UL, 262'144UL, 3'000'001UL}) {
    const Pair pair = make_pair(size, size / 50, size + 1);
    for (const unsigned workers : {0U, 2U}) {
      Bytes payload;
      ASSERT_TRUE(encode_xor(pair.old_bytes, pair.new_bytes, workers, into(payload)).ok());
      for (const std::size_t chunk : {8UL, 65'536UL, 1UL << 22}) {
        if (size / chunk > 100'000) continue;
        auto patcher = make_xor_patcher(pair.tensor, payload);
        ASSERT_TRUE(patcher.ok());
        const auto patched = patch_all(**patcher, pair.old_bytes, chunk);
        ASSERT_TRUE(patched.ok()) << patched.status().message();
        EXPECT_TRUE(*patched == pair.new_bytes) << size << " in chunks of " << chunk;
      }
    }
  }
}

TEST(XorPayload, IsTheXorUnderZstd) {
  const Pair pair = make_pair(1003, 20, 1);
  Bytes payload;
  ASSERT_TRUE(encode_xor(pair.old_bytes, pair.new_bytes, 0, into(payload)).ok());
  const Bytes content = zstd_decompress(payload, 2000).value();
  ASSERT_EQ(content.size(), 1003U);
  for (std::size_t at = 0; at < content.size(); ++at) {
    ASSERT_EQ(content[at], pair.old_bytes[at] ^ pair.new_bytes[at]);
  }
}

TEST(XorPayload, RefusesAnotherSizeAndDamage) {
  const Pair pair = make_pair(5000, 100, 1);
  Bytes payload;
  ASSERT_TRUE(encode_xor(pair.old_bytes, pair.new_bytes, 0, into(payload)).ok());
  EXPECT_EQ(code_of(make_xor_patcher(pair.tensor, payload), pair.tensor), StatusCode::kOk);
  const TensorSpec other = spec("t", DType::kU8, {5001});
  EXPECT_EQ(make_xor_patcher(other, payload).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(make_xor_patcher(other, {}).status().code(), StatusCode::kCorrupt);
  for (std::size_t size = 0; size < payload.size(); ++size) {
    EXPECT_EQ(code_of(make_xor_patcher(pair.tensor, std::span(payload).first(size)), pair.tensor),
              StatusCode::kCorrupt);
  }
  payload.push_back({});
  EXPECT_EQ(code_of(make_xor_patcher(pair.tensor, payload), pair.tensor), StatusCode::kCorrupt);
  EXPECT_FALSE(encode_xor(Bytes(3), Bytes(4), 0, into(payload)).ok());
}

TEST(XorPayload, NamesTheTensorInErrors) {
  const Status status = make_xor_patcher(spec("model.w", DType::kU8, {9}), {}).status();
  EXPECT_NE(status.message().find("model.w"), std::string_view::npos);
}

TEST(OverwritePayload, TurnsOldIntoNewWhateverTheChunks) {
  for (const std::size_t size : {0UL, 1UL, 1000UL, 3'000'001UL}) {
    const Pair pair = make_pair(size, size / 40, size + 1);
    for (const unsigned workers : {0U, 2U}) {
      const Bytes payload = encode_overwrite(pair, workers);
      for (const std::size_t chunk : {8UL, 65'536UL, 1UL << 22}) {
        if (size / chunk > 100'000) continue;
        auto patcher = make_overwrite_patcher(pair.tensor, payload);
        ASSERT_TRUE(patcher.ok()) << patcher.status().message();
        const auto patched = patch_all(**patcher, pair.old_bytes, chunk);
        ASSERT_TRUE(patched.ok()) << patched.status().message();
        EXPECT_TRUE(*patched == pair.new_bytes);
      }
    }
  }
}

// A payload from its parts, right or wrong.
Bytes payload_of(std::uint32_t count, const std::vector<std::uint32_t>& positions,
                 std::size_t values) {
  std::vector<std::uint32_t> words = positions;
  words.insert(words.begin(), count);
  const auto bytes = std::as_bytes(std::span(words));
  Bytes content(bytes.size() + values);
  std::ranges::copy(bytes, content.begin());
  return zstd_compress(content).value();
}

TEST(OverwritePayload, RefusesWhatIsNotTheFormat) {
  const TensorSpec tensor = spec("t", DType::kU8, {100});
  const auto code = [&](const Bytes& payload) {
    return code_of(make_overwrite_patcher(tensor, payload), tensor);
  };
  EXPECT_EQ(code(payload_of(3, {1, 2, 99}, 3)), StatusCode::kOk);
  EXPECT_EQ(code(payload_of(0, {}, 0)), StatusCode::kOk);
  EXPECT_EQ(code(payload_of(3, {1, 2, 100}, 3)), StatusCode::kCorrupt);
  EXPECT_EQ(code(payload_of(3, {1, 2, 2}, 3)), StatusCode::kCorrupt);
  EXPECT_EQ(code(payload_of(3, {1, 3, 2}, 3)), StatusCode::kCorrupt);
  EXPECT_EQ(code(payload_of(3, {1, 2, 0xffffffff}, 3)), StatusCode::kCorrupt);
  EXPECT_EQ(code(payload_of(3, {1, 2, 3}, 4)), StatusCode::kCorrupt);
  EXPECT_EQ(code(payload_of(3, {1, 2, 3}, 2)), StatusCode::kCorrupt);
  EXPECT_EQ(code(payload_of(2, {1, 2, 3}, 3)), StatusCode::kCorrupt);
  EXPECT_EQ(code(payload_of(0xffffffff, {1, 2, 3}, 3)), StatusCode::kCorrupt);
  EXPECT_EQ(code(zstd_compress(Bytes(3)).value()), StatusCode::kCorrupt);
  std::vector<std::uint32_t> many(101);
  for (std::uint32_t k = 0; k < many.size(); ++k) many[k] = k;
  EXPECT_EQ(code(payload_of(101, many, 101)), StatusCode::kCorrupt);
}

TEST(OverwritePayload, NothingIsTouchedAfterAFailure) {
  const TensorSpec tensor = spec("t", DType::kU8, {100});
  const Bytes payload = payload_of(3, {1, 3, 2}, 3);
  auto patcher = make_overwrite_patcher(tensor, payload);
  Bytes chunk(48, std::byte{9});
  EXPECT_FALSE((*patcher)->patch(0, chunk).ok());
  EXPECT_FALSE((*patcher)->patch(48, chunk).ok());
  EXPECT_EQ(chunk, Bytes(48, std::byte{9}));
  EXPECT_FALSE((*patcher)->finish().ok());
}

TEST(OverwritePayload, PastFourGigabytesIsRefusedNamingTheTensor) {
  const TensorSpec large = spec("model.experts", DType::kU8, {(1ULL << 32) + 1});
  const auto sink = [](std::span<const std::byte>) { return Status(); };
  const Status status = OverwriteEncoder::create(large, 1, 0, sink).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("model.experts"), std::string_view::npos);
  EXPECT_NE(status.message().find("xor"), std::string_view::npos);
  EXPECT_EQ(make_overwrite_patcher(large, payload_of(0, {}, 0)).status().code(),
            StatusCode::kUnsupported);

  const TensorSpec edge = spec("t", DType::kU8, {1ULL << 32});
  auto encoder = OverwriteEncoder::create(edge, 1, 0, sink);
  ASSERT_TRUE(encoder.ok());
  OwnedDelta last;
  last.origin = 0xffffffff;
  last.offsets = {0};
  last.values = Bytes(1);
  EXPECT_TRUE(encoder->add_positions(last.view()).ok());
  EXPECT_EQ(OverwriteEncoder::create(edge, 1ULL << 32, 0, sink).status().code(),
            StatusCode::kUnsupported);
}

TEST(OverwriteEncoder, HoldsItsCallerToTheOrder) {
  const TensorSpec tensor = spec("t", DType::kU8, {100});
  const auto sink = [](std::span<const std::byte>) { return Status(); };
  const auto make = [&](std::uint64_t count) {
    return std::move(OverwriteEncoder::create(tensor, count, 0, sink).value());
  };
  OwnedDelta two;
  two.offsets = {4, 5};
  two.values = Bytes(2);
  OverwriteEncoder early = make(2);
  EXPECT_FALSE(early.add_values(two.view()).ok());
  EXPECT_FALSE(early.finish().ok());
  OverwriteEncoder many = make(1);
  EXPECT_FALSE(many.add_positions(two.view()).ok());
  OverwriteEncoder again = make(4);
  EXPECT_TRUE(again.add_positions(two.view()).ok());
  EXPECT_FALSE(again.add_positions(two.view()).ok());
  OverwriteEncoder past = make(2);
  two.origin = 95;
  EXPECT_FALSE(past.add_positions(two.view()).ok());
  two.origin = 0;
  two.unit_bytes = 2;
  OverwriteEncoder wide = make(2);
  EXPECT_FALSE(wide.add_positions(two.view()).ok());
  EXPECT_FALSE(OverwriteEncoder::create(tensor, 101, 0, sink).ok());
}

TEST(TensorPatcher, ChunksMustAdjoinAndCover) {
  const Pair pair = make_pair(100, 5, 4);
  Bytes payload;
  ASSERT_TRUE(encode_xor(pair.old_bytes, pair.new_bytes, 0, into(payload)).ok());
  const auto make = [&] { return std::move(make_xor_patcher(pair.tensor, payload).value()); };
  Bytes chunk(96);
  auto hole = make();
  EXPECT_FALSE(hole->patch(8, std::span(chunk).first(8)).ok());
  auto part = make();
  EXPECT_TRUE(part->patch(0, chunk).ok());
  EXPECT_FALSE(part->finish().ok());
  EXPECT_FALSE(part->patch(96, std::span(chunk).first(8)).ok());
  auto odd = make();
  EXPECT_FALSE(odd->patch(0, std::span(chunk).first(4)).ok());
}

TEST(BucketPatcher, JoinsPiecesOfEveryType) {
  for (const Encoding encoding : {Encoding::kIndices, Encoding::kDeltas}) {
    for (const DTypeInfo& dtype : all_dtypes()) {
      std::mt19937_64 random(9);
      const WeightLayout layout =
          layout_of({spec("a", dtype.dtype, {8}), spec("b", dtype.dtype, {40'000, 8})});
      const TensorSpec& tensor = layout[1];
      const unsigned unit = unit_bytes(dtype.dtype);
      Bytes expected = random_bytes(random, tensor.size_bytes);
      const Bytes old_bytes = expected;
      std::vector<OwnedBucket> buckets;
      std::uint64_t origin = 0;
      for (int piece = 0; piece < 3; ++piece) {
        const OwnedDelta delta = delta_at(layout, 1, origin, random_offsets(random, 20'000, 3), 8);
        BucketBuilder builder(layout, encoding);
        ASSERT_TRUE(builder.add(delta_at(layout, 0, 0, {1}).view()).ok());
        ASSERT_TRUE(builder.add(delta.view()).ok());
        buckets.emplace_back(builder.view());
        for (std::size_t k = 0; k < delta.offsets.size(); ++k) {
          std::memcpy(expected.data() + (origin + delta.offsets[k]) * unit,
                      delta.values.data() + k * unit, unit);
        }
        origin += delta.offsets.back() + 1;
      }
      std::vector<BucketPiece> pieces;
      for (const OwnedBucket& bucket : buckets)
        pieces.push_back({bucket.view(), bucket.entries[1]});
      for (const std::size_t chunk : {8UL, 40'000UL, 1UL << 24}) {
        auto patcher = make_bucket_patcher(layout, 1, pieces);
        ASSERT_TRUE(patcher.ok()) << patcher.status().message();
        const auto patched = patch_all(**patcher, old_bytes, chunk);
        ASSERT_TRUE(patched.ok()) << patched.status().message();
        EXPECT_TRUE(*patched == expected) << dtype.name << " in chunks of " << chunk;
      }
    }
  }
}

class BucketPatcherRefuses : public ::testing::Test {
 protected:
  const WeightLayout layout_ =
      layout_of({spec("a", DType::kBF16, {100}), spec("b", DType::kF16, {100})});

  [[nodiscard]] OwnedBucket bucket(std::uint32_t tensor, std::uint64_t origin,
                                   std::vector<std::uint32_t> offsets) const {
    BucketBuilder builder(layout_, Encoding::kDeltas);
    EXPECT_TRUE(builder.add(delta_at(layout_, tensor, origin, std::move(offsets)).view()).ok());
    return OwnedBucket(builder.view());
  }
  StatusCode code(const std::vector<const OwnedBucket*>& buckets) const {
    std::vector<BucketPiece> pieces;
    for (const OwnedBucket* bucket : buckets)
      pieces.push_back({bucket->view(), bucket->entries[0]});
    return code_of(make_bucket_patcher(layout_, 0, pieces), layout_[0]);
  }
};

TEST_F(BucketPatcherRefuses, PiecesThatOverlapOrDescend) {
  const OwnedBucket first = bucket(0, 0, {1, 5}), second = bucket(0, 5, {1, 2});
  EXPECT_EQ(code({&first, &second}), StatusCode::kOk);
  EXPECT_EQ(code({}), StatusCode::kOk);
  EXPECT_EQ(code({&second, &first}), StatusCode::kCorrupt);
  EXPECT_EQ(code({&first, &first}), StatusCode::kCorrupt);
  const OwnedBucket same = bucket(0, 5, {0});
  EXPECT_EQ(code({&first, &same}), StatusCode::kCorrupt);
}

TEST_F(BucketPatcherRefuses, PiecesOfAnotherTensorTypeOrRange) {
  const OwnedBucket other = bucket(1, 0, {1});
  EXPECT_EQ(code({&other}), StatusCode::kInvalidArgument);
  OwnedBucket typed = bucket(0, 0, {1});
  typed.dtype = DType::kF16;
  EXPECT_EQ(code({&typed}), StatusCode::kWrongLayout);
  OwnedBucket outside = bucket(0, 0, {1});
  outside.entries[0].value_end = 2;
  EXPECT_EQ(code({&outside}), StatusCode::kCorrupt);
  OwnedBucket past = bucket(0, 0, {1});
  past.positions[0] = std::byte{100};
  EXPECT_EQ(code({&past}), StatusCode::kCorrupt);
  EXPECT_FALSE(make_bucket_patcher(layout_, 2, {}).ok());
}

}  // namespace
}  // namespace driftless
