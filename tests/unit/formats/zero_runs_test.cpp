// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "formats/zstd_stream.h"

namespace driftless {
namespace {

using Bytes = std::vector<std::byte>;

Bytes compressed(const Bytes& content, ZstdContent kind) {
  Bytes frame;
  auto writer = ZstdWriter::create(
      content.size(), 0,
      [&frame](std::span<const std::byte> bytes) {
        frame.insert(frame.end(), bytes.begin(), bytes.end());
        return Status();
      },
      kind);
  EXPECT_TRUE(writer.ok());
  // Pieces that do not fit blocks, so that runs are cut anywhere.
  for (std::size_t at = 0; at < content.size(); at += 70'001) {
    const auto piece =
        std::span(content).subspan(at, std::min<std::size_t>(70'001, content.size() - at));
    EXPECT_TRUE(writer->write(piece).ok());
  }
  EXPECT_TRUE(writer->finish().ok());
  return frame;
}

void expect_round_trip(const Bytes& content) {
  const auto back = zstd_decompress(compressed(content, ZstdContent::kMostlyZero), content.size());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, content);
}

// `share` of the 2-byte units get a small number.
Bytes sparse(std::size_t size, double share, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes content(size);
  for (std::size_t at = 0; at + 2 <= size; at += 2) {
    if (static_cast<double>(random() >> 11) < share * 0x1p53) {
      content[at] = static_cast<std::byte>(1 + random() % 7);
    }
  }
  return content;
}

TEST(ZeroRunsTest, EveryDensityAndSizeRoundTrips) {
  for (const double share : {0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 1.0}) {
    for (const std::size_t size : {0, 1, 2, 7, 8, 100, 4096, 131071, 131072, 131073, 700'000}) {
      expect_round_trip(sparse(size, share, size));
    }
  }
}

TEST(ZeroRunsTest, RunsAtTheEdgesOfBlocksRoundTrip) {
  for (std::size_t edge = 131072 - 9; edge <= 131072 + 9; ++edge) {
    Bytes content(400'000);
    content[edge] = std::byte{5};
    content[content.size() - 1] = std::byte{9};
    expect_round_trip(content);
    content[0] = std::byte{1};
    expect_round_trip(content);
  }
}

TEST(ZeroRunsTest, ASparseXorTakesLessRoom) {
  const Bytes content = sparse(4 << 20, 0.015, 1);
  const std::size_t plain = compressed(content, ZstdContent::kAny).size();
  const std::size_t runs = compressed(content, ZstdContent::kMostlyZero).size();
#ifdef DRIFTLESS_HAS_ZSTD_SEQUENCES
  EXPECT_LT(static_cast<double>(runs), 0.9 * static_cast<double>(plain));
#else
  EXPECT_LE(runs, plain);  // an older libzstd: the same bytes
#endif
}

TEST(ZeroRunsTest, ContentThatRepeatsOtherwiseIsLeftToZstd) {
  Bytes content(1 << 20);
  for (std::size_t at = 1; at < content.size(); at += 2) content[at] = std::byte{0x80};
  EXPECT_LT(compressed(content, ZstdContent::kMostlyZero).size(), content.size() / 1000);
}

}  // namespace
}  // namespace driftless
