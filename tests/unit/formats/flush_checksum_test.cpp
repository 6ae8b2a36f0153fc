// SPDX-License-Identifier: Apache-2.0
// flush_checksum() of formats/flush_file.h.
#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "formats/flush_file.h"
#include "support/delta_model.h"

namespace driftless {
namespace {

using testing::Bytes;

// The decimal of P ^ (V << 1).
std::string decimal(std::uint64_t values, std::uint64_t positions) {
  unsigned __int128 number = (static_cast<unsigned __int128>(values) << 1) ^ positions;
  std::string text;
  for (; number != 0; number /= 10) text.insert(text.begin(), char('0' + int(number % 10)));
  return text.empty() ? "0" : text;
}

template <typename T>
std::string checksum_of(DType dtype, T bits) {
  Bytes values(sizeof(T));
  std::memcpy(values.data(), &bits, sizeof(T));
  return flush_checksum({Encoding::kDeltas, dtype, {}, {}, values});
}

TEST(FlushChecksum, WidensEveryTypeExactly) {
  using U8 = std::uint8_t;
  using U16 = std::uint16_t;
  using U32 = std::uint32_t;
  using U64 = std::uint64_t;
  const auto d = [](double value) { return decimal(std::bit_cast<std::uint64_t>(value), 0); };
  EXPECT_EQ(checksum_of(DType::kBF16, U16{0xbfc0}), d(-1.5));
  EXPECT_EQ(checksum_of(DType::kBF16, U16{1}), d(0x1p-133));
  EXPECT_EQ(checksum_of(DType::kF16, U16{0x3c01}), d(1 + 0x1p-10));
  EXPECT_EQ(checksum_of(DType::kF16, U16{0x8001}), d(-0x1p-24));
  EXPECT_EQ(checksum_of(DType::kF32, std::bit_cast<U32>(-0.1F)), d(-0.1F));
  EXPECT_EQ(checksum_of(DType::kF64, std::bit_cast<U64>(-0.1)), d(-0.1));
  EXPECT_EQ(checksum_of(DType::kF8E4M3, U8{0x7e}), d(448));
  EXPECT_EQ(checksum_of(DType::kF8E4M3, U8{0x01}), d(0x1p-9));
  EXPECT_EQ(checksum_of(DType::kF8E5M2, U8{0x7b}), d(57344));
  EXPECT_EQ(checksum_of(DType::kF8E4M3Fnuz, U8{0x7f}), d(240));
  EXPECT_EQ(checksum_of(DType::kF8E5M2Fnuz, U8{0xff}), d(-57344));
  EXPECT_EQ(checksum_of(DType::kF8E8M0, U8{0}), d(0x1p-127));
  EXPECT_EQ(checksum_of(DType::kF8E8M0, U8{254}), d(0x1p127));
  EXPECT_EQ(checksum_of(DType::kI8, U8{0xff}), decimal(~0ULL, 0));
  EXPECT_EQ(checksum_of(DType::kI16, U16{0x8000}), decimal(0xffffffffffff8000, 0));
  EXPECT_EQ(checksum_of(DType::kI32, U32{0xffffffff}), decimal(~0ULL, 0));
  EXPECT_EQ(checksum_of(DType::kI64, ~0ULL), "36893488147419103230");  // 65 bits
  EXPECT_EQ(checksum_of(DType::kU8, U8{255}), "510");
  EXPECT_EQ(checksum_of(DType::kU16, U16{65'535}), "131070");
  EXPECT_EQ(checksum_of(DType::kU32, U32{0xffffffff}), decimal(0xffffffff, 0));
  EXPECT_EQ(checksum_of(DType::kU64, ~0ULL), decimal(~0ULL, 0));
  EXPECT_EQ(checksum_of(DType::kBool, U8{1}), "2");
  EXPECT_EQ(checksum_of(DType::kF4, U8{0x5a}), decimal(0x5a, 0));
  const std::array<float, 2> complex{1.0F, 0.0F};
  EXPECT_EQ(checksum_of(DType::kC64, complex), d(1.0));
}

TEST(FlushChecksum, SpecialValues) {
  const auto b = [](std::uint64_t bits) { return decimal(bits, 0); };
  EXPECT_EQ(checksum_of(DType::kBF16, std::uint16_t{0x8000}), b(0x8000000000000000));
  EXPECT_EQ(checksum_of(DType::kF16, std::uint16_t{0xfc00}), b(0xfff0000000000000));
  EXPECT_EQ(checksum_of(DType::kF8E5M2, std::uint8_t{0x7c}), b(0x7ff0000000000000));
  // NaNs: the payload moves up, signalling ones become quiet.
  EXPECT_EQ(checksum_of(DType::kBF16, std::uint16_t{0xff81}), b(0xfff8200000000000));
  EXPECT_EQ(checksum_of(DType::kF16, std::uint16_t{0x7e01}), b(0x7ff8040000000000));
  EXPECT_EQ(checksum_of(DType::kF32, std::uint32_t{0x7f800001}), b(0x7ff8000020000000));
  EXPECT_EQ(checksum_of(DType::kF8E4M3, std::uint8_t{0xff}), b(0xfffe000000000000));
  EXPECT_EQ(checksum_of(DType::kF8E5M2, std::uint8_t{0x7d}), b(0x7ffc000000000000));
  EXPECT_EQ(checksum_of(DType::kF8E4M3Fnuz, std::uint8_t{0x80}), b(0x7ff8000020000000));
  EXPECT_EQ(checksum_of(DType::kF8E8M0, std::uint8_t{0xff}), b(0x7ff8000020000000));
  EXPECT_EQ(checksum_of(DType::kF64, std::uint64_t{0x7ff0000000000001}), b(0x7ff0000000000001));
}

TEST(FlushChecksum, EveryBf16WidensAsFloat32Does) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    ASSERT_EQ(checksum_of(DType::kBF16, static_cast<std::uint16_t>(bits)),
              checksum_of(DType::kF32, bits << 16))
        << bits;
  }
}

// Normal values are widened together, others one by one.
TEST(FlushChecksum, ManyBf16AreTheXorOfEach) {
  std::mt19937_64 random(5);
  for (const std::size_t count : {1UL, 1023UL, 1024UL, 1025UL, 4096UL, 10'001UL}) {
    for (const unsigned specials : {0U, 1U, 3U, 900U}) {
      std::vector<std::uint16_t> values(count);
      for (auto& value : values) value = static_cast<std::uint16_t>(0x3c00 + random() % 0x200);
      for (unsigned i = 0; i < specials; ++i) {  // zero, subnormal, infinite, NaN
        constexpr std::array<std::uint16_t, 6> kSpecial{0, 0x8000, 0x0001, 0x7f80, 0xff81, 0x7fc0};
        values[random() % count] = kSpecial[random() % kSpecial.size()];
      }
      std::vector<std::uint32_t> wide(values.begin(), values.end());
      for (std::uint32_t& value : wide) value <<= 16;
      EXPECT_EQ(
          flush_checksum(
              {Encoding::kDeltas, DType::kBF16, {}, {}, std::as_bytes(std::span(values))}),
          flush_checksum({Encoding::kDeltas, DType::kF32, {}, {}, std::as_bytes(std::span(wide))}))
          << count << " " << specials;
    }
  }
}

TEST(FlushChecksum, DoesNotDependOnTheThreads) {
  std::mt19937_64 random(6);
  const Bytes positions = testing::random_bytes(random, (5 << 20) + 3);
  const Bytes values = testing::random_bytes(random, (7 << 20) + 8);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF32, DType::kC64}) {
    const BucketView bucket{Encoding::kDeltas, dtype, {}, positions, values};
    const std::string alone = flush_checksum(bucket);
    for (const unsigned threads : {0U, 2U, 5U, 16U}) {
      EXPECT_EQ(flush_checksum(bucket, threads), alone) << info(dtype).name;
    }
  }
}

TEST(FlushChecksum, XorsPositionBytesAndValues) {
  std::mt19937_64 random(3);
  for (const std::size_t count : {1UL, 7UL, 8UL, 1001UL}) {
    const Bytes positions = testing::random_bytes(random, count);
    std::vector<std::uint32_t> values(count);
    std::uint64_t expected_values = 0, expected_positions = 0;
    for (std::uint32_t& value : values) expected_values ^= value = std::uint32_t(random());
    for (const std::byte byte : positions) expected_positions ^= std::uint64_t(byte);
    const BucketView bucket{
        Encoding::kDeltas, DType::kU32, {}, positions, std::as_bytes(std::span(values))};
    EXPECT_EQ(flush_checksum(bucket), decimal(expected_values, expected_positions));
  }
}

}  // namespace
}  // namespace driftless
