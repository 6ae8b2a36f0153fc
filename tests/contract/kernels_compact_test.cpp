// SPDX-License-Identifier: Apache-2.0
// `compact`: every implementation makes the same streams of a tile, reads them back exactly, and
// reports tiles that it cannot code.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/compact_ops.h"
#include "support/kernels_data.h"
#include "support/kernels_under_test.h"

namespace driftless {
namespace {

using namespace driftless::testing;

constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF8E4M3,
                             DType::kF8E5M2};

using Bytes = std::vector<std::byte>;

// A tile before and after its changes, and a table that codes all of them.
struct Tile {
  CompactFields fields;
  std::uint32_t units = 0;
  Bytes before;
  std::vector<std::uint32_t> offsets;
  Bytes values, old_values;
  CompactTable table;

  Tile(DType dtype, Bytes old_bytes, const Bytes& after)
      : fields(*compact_fields(dtype)), before(std::move(old_bytes)) {
    const unsigned width = fields.unit_bytes;
    units = static_cast<std::uint32_t>(before.size() / width);
    offsets.resize(units + kDiffSlackUnits);
    values.resize(offsets.size() * width);
    old_values.resize(offsets.size() * width);
    const std::uint32_t count =
        all_host_kernels().front().diff(before.data(), after.data(), units, width, offsets.data(),
                                        values.data(), old_values.data());
    offsets.resize(count);
    values.resize(std::size_t{count} * width);
    old_values.resize(std::size_t{count} * width);
    const auto counts = std::make_unique<CompactCounts>();
    count_compact_units(fields, before.data(), units, *counts);
    count_compact_changes(fields, old_values.data(), values.data(), count, *counts);
    table = make_compact_table(fields, *counts);
  }
  [[nodiscard]] std::uint32_t count() const { return static_cast<std::uint32_t>(offsets.size()); }
};

Tile random_tile(DType dtype, std::uint32_t units, Pattern pattern, std::uint64_t seed) {
  Random random(seed);
  const unsigned width = unit_bytes(dtype);
  Bytes before(std::size_t{units} * width);
  fill_units(random, width, before.data(), units);
  Bytes after = before;
  change_units(random, pattern, width, after.data(), units);
  return {dtype, before, after};
}

// Units like those of real weights: few exponents, and steps to the next value or a few values
// further.
Tile weights_tile(DType dtype, std::uint32_t units, std::uint64_t seed) {
  Random random(seed);
  const CompactFields fields = *compact_fields(dtype);
  const unsigned width = fields.unit_bytes;
  Bytes before(std::size_t{units} * width), after;
  for (std::uint32_t i = 0; i < units; ++i) {
    const auto exponent = static_cast<std::uint32_t>(
        fields.classes() / 2 - 1 - std::min<unsigned>(std::countr_zero(random() | 4096), 12));
    const std::uint32_t mantissa = random() & ((1U << fields.mantissa_bits) - 1);
    const std::uint32_t sign = (random() & 1) << fields.magnitude_bits();
    const std::uint32_t bits = sign | (exponent << fields.mantissa_bits) | mantissa;
    std::memcpy(before.data() + std::size_t{i} * width, &bits, width);
  }
  after = before;
  for (std::uint32_t i = 0; i < units; ++i) {
    if (random() % 60 != 0) continue;
    std::uint32_t bits = 0;
    std::memcpy(&bits, after.data() + std::size_t{i} * width, width);
    bits += random() % 8 == 0 ? random() % 5 : 1;
    std::memcpy(after.data() + std::size_t{i} * width, &bits, width);
  }
  return {dtype, before, after};
}

class CompactKernels : public ::testing::TestWithParam<HostKernels> {
 protected:
  void SetUp() override {
    if (GetParam().compact_encode == nullptr) GTEST_SKIP() << "this backend has no `compact` yet";
  }
  [[nodiscard]] const HostKernels& kernels() const { return GetParam(); }
  [[nodiscard]] static const HostKernels& reference() { return all_host_kernels().front(); }

  static Bytes encode(const HostKernels& kernels, const Tile& tile) {
    GuardedBytes stream(max_compact_bytes(tile.fields, tile.count()), tile.count() % 7);
    const std::uint32_t size =
        kernels.compact_encode(tile.table, tile.before.data(), tile.units, tile.offsets.data(),
                               tile.count(), tile.values.data(), stream.data());
    EXPECT_TRUE(stream.intact());
    EXPECT_LE(size, stream.size());
    return {stream.data(), stream.data() + std::min<std::size_t>(size, stream.size())};
  }
  // Decodes a stream into a tile with the same table; nothing if the decoder refuses it.
  static std::optional<Tile> decode(const HostKernels& kernels, const Tile& tile,
                                    const Bytes& before, const Bytes& stream, std::uint32_t count) {
    const unsigned width = tile.fields.unit_bytes;
    GuardedBytes offsets(std::size_t{count} * 4);
    GuardedBytes values(std::size_t{count} * width, 1), old_values(std::size_t{count} * width, 3);
    // Exactly as long as the stream, so that a sanitizer finds a read past its end.
    const auto exact = std::make_unique<std::byte[]>(stream.size());
    std::copy(stream.begin(), stream.end(), exact.get());
    const bool good = kernels.compact_decode(
        tile.table, before.data(), tile.units, {exact.get(), stream.size()}, count,
        reinterpret_cast<std::uint32_t*>(offsets.data()), values.data(), old_values.data());
    EXPECT_TRUE(offsets.intact() && values.intact() && old_values.intact());
    if (!good) return std::nullopt;
    Tile found = tile;
    found.before = before;
    found.offsets.resize(count);
    if (count > 0) std::memcpy(found.offsets.data(), offsets.data(), offsets.size());
    found.values = values.copy();
    found.old_values = old_values.copy();
    return found;
  }
  static bool same(const Tile& a, const Tile& b) {
    return a.offsets == b.offsets && a.values == b.values && a.old_values == b.old_values;
  }
  // Bytes that no encoder makes of this tile. The decoder refuses them, or returns other changes,
  // which the digest of the change reveals.
  static void expect_other(const HostKernels& kernels, const Tile& tile, const Bytes& before,
                           const Bytes& stream, std::uint32_t count) {
    const std::optional<Tile> found = decode(kernels, tile, before, stream, count);
    if (!found) return;
    EXPECT_FALSE(same(*found, tile));
    EXPECT_EQ(encode(reference(), *found), stream);
  }
  void expect_good(const Tile& tile) const {
    const Bytes stream = encode(kernels(), tile);
    ASSERT_EQ(stream, encode(reference(), tile));
    ASSERT_EQ(stream.empty(), tile.count() == 0);
    const auto found = decode(kernels(), tile, tile.before, stream, tile.count());
    ASSERT_TRUE(found && same(*found, tile));
  }
};

TEST_P(CompactKernels, AnyBitsGoThereAndBack) {
  for (const DType dtype : kFloats) {
    const std::uint32_t full = compact_fields(dtype)->tile_units();
    for (const std::uint32_t units :
         {1U, 2U, 15U, 16U, 17U, 63U, 64U, 65U, 1000U, 16383U, 16384U, full - 1, full}) {
      for (const Pattern pattern : kAllPatterns) {
        SCOPED_TRACE(::testing::Message() << info(dtype).name << ", " << units << " units, pattern "
                                          << static_cast<int>(pattern));
        expect_good(random_tile(dtype, units, pattern, units * 31 + unit_bytes(dtype)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CompactKernels, WeightsGoThereAndBack) {
  for (const DType dtype : kFloats) {
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(::testing::Message() << info(dtype).name << ", seed " << seed);
      expect_good(weights_tile(dtype, compact_fields(dtype)->tile_units() - seed * 13, seed));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CompactKernels, FromEveryBitPatternToEveryKindOfOther) {
  Bytes before(65536 * 2), after(65536 * 2);
  for (const std::uint32_t flip : {1U, 0x7fffU, 0x8000U, 0xffffU, 0x0080U, 0x1234U}) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const std::uint32_t other = bits ^ flip;
      std::memcpy(before.data() + 2 * bits, &bits, 2);
      std::memcpy(after.data() + 2 * bits, &other, 2);
    }
    for (std::size_t at = 0; at < before.size(); at += 2 * kCompactTileUnits) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        const auto part = [&](const Bytes& all) {
          return Bytes(all.begin() + static_cast<std::ptrdiff_t>(at),
                       all.begin() + static_cast<std::ptrdiff_t>(at + 2 * kCompactTileUnits));
        };
        expect_good({dtype, part(before), part(after)});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(CompactKernels, GapsOfManyTurnsAreCoded) {
  // Units that nearly always change, and do not change here, need escapes up to the end of the
  // axis. The axis of a full tile of bytes is nearly 2^32 long.
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    Tile tile = random_tile(dtype, compact_fields(dtype)->tile_units(), Pattern::kLast, 5);
    for (std::uint16_t& hazard : tile.table.hazards) hazard = kMaxCompactHazard;
    ASSERT_GT(tile.count(), 0U);
    expect_good(tile);
    // A gap of one turn more than the axis has, and streams of endless turns.
    Bytes stream = encode(reference(), tile);
    EXPECT_FALSE(decode(kernels(), tile, tile.before, stream, tile.count() + 1));
    std::fill(stream.begin(), stream.end(), std::byte{0xff});
    EXPECT_FALSE(decode(kernels(), tile, tile.before, stream, tile.count()));
  }
}

TEST_P(CompactKernels, AChangeThatTheTableHasNotIsRefused) {
  Tile tile = weights_tile(DType::kBF16, 16384, 3);
  std::uint16_t first = 0;
  std::memcpy(&first, tile.old_values.data(), 2);
  Tile without_class = tile;
  without_class.table.hazards[tile.fields.class_of(first)] = 0;
  Tile without_steps = tile;
  without_steps.table.step_rows = {};
  std::vector<std::byte> room(max_compact_bytes(tile.fields, tile.count()));
  for (const Tile* const each : {&without_class, &without_steps}) {
    EXPECT_EQ(kernels().compact_encode(each->table, each->before.data(), each->units,
                                       each->offsets.data(), each->count(), each->values.data(),
                                       room.data()),
              kCompactNotInTable);
  }
}

TEST_P(CompactKernels, DamageIsRefusedOrOtherChanges) {
  const Tile tile = weights_tile(DType::kBF16, 4096, 11);
  const Bytes stream = encode(reference(), tile);
  const auto check = [&](const Bytes& bytes, std::uint32_t count) {
    expect_other(kernels(), tile, tile.before, bytes, count);
  };
  for (std::size_t at = 0; at < stream.size(); ++at) {
    for (const unsigned flip : {1U, 0x80U, 0xffU}) {
      Bytes damaged = stream;
      damaged[at] ^= static_cast<std::byte>(flip);
      check(damaged, tile.count());
    }
    check(Bytes(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(at)), tile.count());
  }
  Bytes longer = stream;
  longer.push_back(std::byte{0});
  for (const std::uint32_t count : {0U, tile.count() - 1, tile.count() + 1, tile.units}) {
    EXPECT_FALSE(decode(kernels(), tile, tile.before, stream, count));
  }
  EXPECT_FALSE(decode(kernels(), tile, tile.before, {}, tile.count()));
  EXPECT_FALSE(decode(kernels(), tile, tile.before, longer, tile.count()));
}

TEST_P(CompactKernels, NoiseEndsAndIsWithinBounds) {
  Random random(17);
  for (std::uint32_t turn = 0; turn < 300; ++turn) {
    const Tile tile =
        random_tile(kFloats[turn % std::size(kFloats)], 1 + random() % 4000, Pattern::kHalf, turn);
    Bytes noise(random() % 600);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    expect_other(kernels(), tile, tile.before, noise, 1 + random() % tile.units);
  }
}

TEST_P(CompactKernels, AStepThatLeavesTheTypeIsRefused) {
  // Coded from one value of a class and decoded from another, from which the step leaves the type.
  struct Case {
    std::uint16_t coded_from, coded_to, decoded_from;
  };
  for (const Case& each : {Case{0x0005, 0x0002, 0x0001}, Case{0x7ff0, 0x7fff, 0x7ff8},
                           Case{0x8005, 0x8002, 0x8001}, Case{0xfff0, 0xffff, 0xfff8}}) {
    const auto bytes = [](std::uint16_t value) {
      return Bytes{static_cast<std::byte>(value), static_cast<std::byte>(value >> 8)};
    };
    const Tile tile(DType::kBF16, bytes(each.coded_from), bytes(each.coded_to));
    const Bytes stream = encode(kernels(), tile);
    EXPECT_TRUE(decode(kernels(), tile, tile.before, stream, 1));
    EXPECT_FALSE(decode(kernels(), tile, bytes(each.decoded_from), stream, 1));
  }
}

TEST_P(CompactKernels, OtherOldUnitsAreRefused) {
  const Tile tile = weights_tile(DType::kBF16, 16384, 23);
  const Bytes stream = encode(kernels(), tile);
  for (std::uint32_t at = 0; at < tile.offsets[tile.count() / 2]; at += 37) {
    Bytes other = tile.before;
    other[2 * at + 1] ^= std::byte{0x04};  // another exponent shifts everything after it
    EXPECT_FALSE(decode(kernels(), tile, other, stream, tile.count())) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(All, CompactKernels, ::testing::ValuesIn(kernels_under_test()),
                         [](const auto& param) { return test_name(param.param.name); });

}  // namespace
}  // namespace driftless
