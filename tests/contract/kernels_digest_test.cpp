// SPDX-License-Identifier: Apache-2.0
// Every implementation computes the digest that core/digest.h defines, and has the properties on
// which other code relies.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "kernels/host_kernels.h"
#include "support/kernels_data.h"
#include "support/kernels_under_test.h"

namespace driftless {
namespace {

using namespace driftless::testing;

class KernelsDigest : public ::testing::TestWithParam<HostKernels> {
 protected:
  const HostKernels& kernels() const { return GetParam(); }
  const HostKernels& reference() const { return all_host_kernels().front(); }
  const DigestTensorKey key_ = digest_tensor_key("model.layers.0.mlp.up_proj.weight");
};

TEST_P(KernelsDigest, EqualsReferenceAtEveryShortLengthAndOffset) {
  const std::vector<std::byte> bytes = random_bytes(1, 400);
  for (std::size_t size = 0; size <= 300; ++size) {
    for (std::size_t shift = 0; shift < 5; ++shift) {
      // Around the end of a block, so that the key changes within the piece.
      const std::uint64_t offset = kDigestBlockBytes * 7 - 150 + size % 9;
      const auto piece = std::span(bytes).subspan(shift, size);
      ASSERT_EQ(kernels().digest(key_, offset, piece), reference().digest(key_, offset, piece))
          << "size " << size << ", shift " << shift;
    }
  }
}

TEST_P(KernelsDigest, EqualsReferenceOverManyBlocksAndFarOut) {
  const std::vector<std::byte> bytes = random_bytes(2, 5 * kDigestBlockBytes + 3);
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{4}, std::uint64_t{4095},
                                     (std::uint64_t{1} << 32) + 2, (std::uint64_t{1} << 45) + 1}) {
    EXPECT_EQ(kernels().digest(key_, offset, bytes), reference().digest(key_, offset, bytes));
  }
}

TEST_P(KernelsDigest, DoesNotOverflowWhereAllBitsAreSet) {
  const std::vector<std::byte> bytes(2 * kDigestBlockBytes, std::byte{0xff});
  EXPECT_EQ(kernels().digest(key_, 0, bytes), reference().digest(key_, 0, bytes));
}

TEST_P(KernelsDigest, AddsUpOverAnyCuts) {
  const std::vector<std::byte> bytes = random_bytes(3, 3 * kDigestBlockBytes + 77);
  const Digest whole = kernels().digest(key_, 0, bytes);
  Random random(4);
  for (int round = 0; round < 50; ++round) {
    Digest sum;
    for (std::size_t from = 0; from < bytes.size();) {
      const std::size_t size = std::min<std::size_t>(random() % 3000, bytes.size() - from);
      sum += kernels().digest(key_, from, std::span(bytes).subspan(from, size));
      from += size;
    }
    ASSERT_EQ(sum, whole);
  }
}

TEST_P(KernelsDigest, ZeroBytesAtTheEndDoNotCount) {
  std::vector<std::byte> bytes = random_bytes(5, 1001);
  const Digest digest = kernels().digest(key_, 0, bytes);
  bytes.resize(1500);
  EXPECT_EQ(kernels().digest(key_, 0, bytes), digest);
}

TEST_P(KernelsDigest, EverySingleBitCountsInBothLanes) {
  std::vector<std::byte> bytes = random_bytes(6, 600);
  const Digest digest = kernels().digest(key_, 3900, bytes);
  std::set<std::uint64_t> seen;
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte flip = std::byte{1} << (bit % 8);
    bytes[bit / 8] ^= flip;
    const Digest other = kernels().digest(key_, 3900, bytes);
    bytes[bit / 8] ^= flip;
    ASSERT_NE(other.lanes[0], digest.lanes[0]);
    ASSERT_NE(other.lanes[1], digest.lanes[1]);
    ASSERT_TRUE(seen.insert(other.lanes[0]).second) << "two flips with one digest";
  }
}

TEST_P(KernelsDigest, PlaceAndTensorCount) {
  const std::vector<std::byte> bytes = random_bytes(7, 64);
  const Digest digest = kernels().digest(key_, 0, bytes);
  for (const std::uint64_t offset : {1, 2, 3, 4, 4096, 8192, 1 << 20}) {
    EXPECT_NE(kernels().digest(key_, offset, bytes), digest) << offset;
  }
  EXPECT_NE(kernels().digest(digest_tensor_key("model.norm.weight"), 0, bytes), digest);
}

// Computes both digests by whole sweeps, and their difference from the change alone.
void expect_change_is_the_difference(const HostKernels& kernels, const HostKernels& reference,
                                     const DigestTensorKey& key, unsigned width,
                                     std::uint32_t units, Pattern pattern, std::uint64_t origin) {
  SCOPED_TRACE(::testing::Message() << "width " << width << ", units " << units << ", origin "
                                    << origin << ", pattern " << static_cast<int>(pattern));
  Random random(units + width);
  std::vector<std::byte> before(std::size_t{units} * width);
  fill_units(random, width, before.data(), units);
  std::vector<std::byte> after = before;
  change_units(random, pattern, width, after.data(), units);
  std::vector<std::uint32_t> offsets(units + kDiffSlackUnits);
  std::vector<std::byte> new_values(offsets.size() * width), old_values(offsets.size() * width + 1);
  const std::uint32_t found = reference.diff(before.data(), after.data(), units, width,
                                             offsets.data(), new_values.data(), nullptr);
  std::byte* const misaligned = old_values.data() + 1;
  reference.gather(before.data(), width, offsets.data(), found, misaligned);

  const Digest change = kernels.digest_change(key, width, origin, offsets.data(), found, misaligned,
                                              new_values.data());
  EXPECT_EQ(change, kernels.digest(key, origin * width, after) -
                        kernels.digest(key, origin * width, before));
  EXPECT_EQ(change, reference.digest_change(key, width, origin, offsets.data(), found, misaligned,
                                            new_values.data()));
  GuardedBytes written(before.size(), 1);
  std::ranges::copy(before, written.data());
  EXPECT_EQ(change, kernels.scatter_digested(key, width, origin, offsets.data(), found, misaligned,
                                             new_values.data(), written.data()));
  EXPECT_EQ(written.copy(), after);
  EXPECT_TRUE(written.intact());
}

TEST_P(KernelsDigest, ChangeIsTheDifferenceOfTheSweeps) {
  for (const unsigned width : kWidths) {
    for (const std::uint32_t units : {0U, 1U, 2U, 7U, 300U, 9001U}) {
      for (const Pattern pattern : kAllPatterns) {
        for (const std::uint64_t origin :
             {std::uint64_t{0}, std::uint64_t{1021}, (std::uint64_t{1} << 33) + 5}) {
          expect_change_is_the_difference(kernels(), reference(), key_, width, units, pattern,
                                          origin);
        }
      }
    }
  }
}

// The largest possible steps, all of one sign, at every place of two blocks and beyond.
TEST_P(KernelsDigest, ChangeDoesNotOverflowWhereAllBitsChange) {
  for (const unsigned width : kWidths) {
    const std::uint64_t units = 5 * kDigestBlockBytes / 2 / width;
    std::vector<std::uint32_t> offsets(units);
    for (std::uint32_t i = 0; i < units; ++i) offsets[i] = i;
    const std::vector<std::byte> clear(units * width), set(units * width, std::byte{0xff});
    const Digest all = kernels().digest(key_, 0, set);
    EXPECT_EQ(
        kernels().digest_change(key_, width, 0, offsets.data(), units, clear.data(), set.data()),
        all);
    EXPECT_EQ(
        kernels().digest_change(key_, width, 0, offsets.data(), units, set.data(), clear.data()),
        Digest() - all);
  }
}

// More blocks than an implementation sums at a time, with a change in each.
TEST_P(KernelsDigest, ChangeOfManyBlocksIsThatOfTheReference) {
  for (const unsigned width : kWidths) {
    std::vector<std::uint32_t> offsets;
    for (std::uint32_t i = 0; i < 1000; ++i) offsets.push_back(i * 4097 / width);
    const std::vector<std::byte> before = random_bytes(8, offsets.size() * width);
    const std::vector<std::byte> after = random_bytes(9, offsets.size() * width);
    EXPECT_EQ(kernels().digest_change(key_, width, 3, offsets.data(), offsets.size(), before.data(),
                                      after.data()),
              reference().digest_change(key_, width, 3, offsets.data(), offsets.size(),
                                        before.data(), after.data()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, KernelsDigest, ::testing::ValuesIn(kernels_under_test()),
                         [](const auto& param) { return test_name(param.param.name); });

}  // namespace
}  // namespace driftless
