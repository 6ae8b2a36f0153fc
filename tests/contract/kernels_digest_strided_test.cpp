// SPDX-License-Identifier: Apache-2.0
// Every implementation of digest_strided gives the same sums as reference/; and the sums over maps
// that divide a tensor add up to the tensor's digest.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/host_kernels.h"
#include "support/kernels_data.h"
#include "support/kernels_under_test.h"

namespace driftless {
namespace {

using namespace driftless::testing;

// Rows that end inside words and inside blocks of the digest, columns below and above the length
// that is summed in place, transposes, stacks, steps.
std::vector<StridedCase> shares() {
  return {
      {"whole", 90 * 131, 90 * 131, {0, {90, 131}, {131, 1}}, {0, {90, 131}, {131, 1}}},
      {"rows", 90 * 131, 40 * 131, {131 * 7, {31, 131}, {131, 1}}, {131, {31, 131}, {131, 1}}},
      {"columns", 30 * 2048, 30 * 1024, {1024, {30, 1024}, {2048, 1}}, {0, {30, 1024}, {1024, 1}}},
      {"odd columns", 30 * 701, 30 * 350, {333, {30, 350}, {701, 1}}, {0, {30, 350}, {350, 1}}},
      {"narrow columns", 90 * 131, 90 * 9, {5, {90, 9}, {131, 1}}, {0, {90, 9}, {9, 1}}},
      {"transposed", 120 * 50, 120 * 50, {0, {50, 120}, {1, 50}}, {0, {50, 120}, {120, 1}}},
      {"expert in a stack", 60 * 70, 4 * 4200, {0, {60, 70}, {70, 1}}, {8400, {60, 70}, {1, 60}}},
      {"stack of slices",
       4 * 30 * 200,
       4 * 2000,
       {50, {4, 20, 100}, {6000, 200, 1}},
       {0, {4, 20, 100}, {2000, 100, 1}}},
      {"every third", 10000, 3334, {0, {3334}, {3}}, {0, {3334}, {1}}},
      {"one", 100, 10, {42, {}, {}}, {7, {}, {}}},
      {"nothing", 100, 10, {0, {0, 10}, {10, 1}}, {0, {0, 10}, {10, 1}}},
  };
}

class DigestStrided : public ::testing::TestWithParam<HostKernels> {
 protected:
  const HostKernels& kernels() const { return GetParam(); }
  const HostKernels& reference() const { return all_host_kernels().front(); }
  const DigestTensorKey key_ = digest_tensor_key("model.layers.0.self_attn.o_proj.weight");

  void expect_same(const StridedCase& each, unsigned width, ValueCast cast, std::uint64_t begin,
                   std::uint64_t end) const {
    SCOPED_TRACE(::testing::Message() << each.name << ", width " << width << ", cast "
                                      << static_cast<int>(cast) << ", " << begin << " to " << end);
    const StridedMap map = map_of(each);
    Random random(width + begin);
    GuardedBytes target(each.target_units * width, begin % 3 * width);
    fill_units(random, width, target.data(), each.target_units);
    if (cast != ValueCast::kNone) widen_most(random, cast, target, each.target_units);
    EXPECT_EQ(kernels().digest_strided(map, target.data(), width, cast, key_, begin, end),
              reference().digest_strided(map, target.data(), width, cast, key_, begin, end));
  }
  // Stores converted values; a few units keep bits that no value converts to.
  static void widen_most(Random& random, ValueCast cast, GuardedBytes& target,
                         std::uint64_t units) {
    for (std::uint64_t i = 0; i < units; ++i) {
      if (random() % 50 == 0) continue;
      const auto value = static_cast<std::uint16_t>(random());
      const std::uint32_t bits =
          cast == ValueCast::kBF16ToF32 ? f32_of_bf16(value) : f32_of_f16(value);
      std::memcpy(target.data() + i * 4, &bits, 4);
    }
  }
};

TEST_P(DigestStrided, SumsWhatReferenceSums) {
  for (const StridedCase& each : shares()) {
    for (const unsigned width : kWidths) {
      expect_same(each, width, ValueCast::kNone, 0, each.source_units);
      expect_same(each, width, ValueCast::kNone, each.source_units / 3, each.source_units * 4 / 5);
    }
  }
}

TEST_P(DigestStrided, UndoesConversionsAndCountsWhatTheyDoNotGive) {
  for (const StridedCase& each : shares()) {
    for (const ValueCast cast : {ValueCast::kBF16ToF32, ValueCast::kF16ToF32}) {
      expect_same(each, 4, cast, 0, each.source_units);
      expect_same(each, 4, cast, each.source_units / 3, each.source_units * 4 / 5);
    }
  }
  const StridedCase one{"one", 1, 1, {0, {1}, {1}}, {0, {1}, {1}}};
  const std::uint32_t rounded = 0x3f808001;
  EXPECT_EQ(kernels().digest_strided(map_of(one), &rounded, 4, ValueCast::kBF16ToF32, key_, 0, 1),
            (StridedSum{Digest{}, 1}));
}

// A tensor that is divided among ranks by columns and rows, one of them in another order and type.
TEST_P(DigestStrided, SharesAddUpToTheTensor) {
  const std::uint64_t rows = 37, columns = 515, cut = 201, top = 17;
  Random random(9);
  std::vector<std::uint16_t> tensor(rows * columns);
  fill_units(random, 2, reinterpret_cast<std::byte*>(tensor.data()), tensor.size());
  const std::uint64_t right = columns - cut;
  std::vector<std::uint16_t> a(rows * cut), b(top * right);
  std::vector<std::uint32_t> c((rows - top) * right);
  for (std::uint64_t r = 0; r < rows; ++r) {
    for (std::uint64_t k = 0; k < columns; ++k) {
      const std::uint16_t value = tensor[r * columns + k];
      if (k < cut) a[k * rows + r] = value;
      if (k >= cut && r < top) b[r * right + k - cut] = value;
      if (k >= cut && r >= top) c[(r - top) * right + k - cut] = f32_of_bf16(value);
    }
  }
  const auto sum = [&](const StridedCase& each, const void* data, unsigned width, ValueCast cast) {
    const StridedSum found =
        kernels().digest_strided(map_of(each), data, width, cast, key_, 0, each.source_units);
    EXPECT_EQ(found.foreign, 0U);
    return found.digest;
  };
  const std::uint64_t all = rows * columns;
  const Digest total = sum({"transposed columns",
                            all,
                            a.size(),
                            {0, {cut, rows}, {1, columns}},
                            {0, {cut, rows}, {rows, 1}}},
                           a.data(), 2, ValueCast::kNone) +
                       sum({"a corner",
                            all,
                            b.size(),
                            {cut, {top, right}, {columns, 1}},
                            {0, {top, right}, {right, 1}}},
                           b.data(), 2, ValueCast::kNone) +
                       sum({"a wider corner",
                            all,
                            c.size(),
                            {top * columns + cut, {rows - top, right}, {columns, 1}},
                            {0, {rows - top, right}, {right, 1}}},
                           c.data(), 4, ValueCast::kBF16ToF32);
  EXPECT_EQ(total, reference().digest(key_, 0, std::as_bytes(std::span(tensor))));
}

TEST_P(DigestStrided, PositionsPast32BitsAreExact) {
  const std::uint64_t rows = std::uint64_t{1} << 22, columns = 2048, first_row = rows - 8;
  const StridedCase each{"the last rows' columns",
                         rows * columns,
                         8 * 512,
                         {first_row * columns + 512, {8, 512}, {columns, 1}},
                         {0, {8, 512}, {512, 1}}};
  expect_same(each, 2, ValueCast::kNone, first_row * columns, rows * columns);
  expect_same(each, 2, ValueCast::kNone, 0, rows * columns);
}

INSTANTIATE_TEST_SUITE_P(All, DigestStrided, ::testing::ValuesIn(kernels_under_test()),
                         [](const auto& param) { return test_name(param.param.name); });

}  // namespace
}  // namespace driftless
