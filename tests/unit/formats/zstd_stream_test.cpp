// SPDX-License-Identifier: Apache-2.0
#include "formats/zstd_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "support/delta_model.h"
#include "support/zstd_bytes.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::random_bytes;

// Mostly zeros, like the XOR of two versions.
Bytes sparse(std::size_t count, std::uint64_t seed = 3) {
  std::mt19937_64 random(seed);
  Bytes bytes(count);
  for (std::size_t k = 0; k < count / 50; ++k) bytes[random() % count] = std::byte(random());
  return bytes;
}

Bytes compress(const Bytes& content, unsigned workers, std::size_t piece) {
  Bytes frame;
  auto writer = ZstdWriter::create(content.size(), workers, [&](std::span<const std::byte> bytes) {
    frame.insert(frame.end(), bytes.begin(), bytes.end());
    return Status();
  });
  EXPECT_TRUE(writer.ok());
  for (std::size_t at = 0; at < content.size(); at += piece) {
    EXPECT_TRUE(
        writer->write(std::span(content).subspan(at, std::min(piece, content.size() - at))).ok());
  }
  EXPECT_TRUE(writer->finish().ok());
  return frame;
}

StatusCode read_whole(const Bytes& frame) {
  return zstd_decompress(frame, 1 << 30).status().code();
}

TEST(ZstdStream, ContentComesBackWhateverThePiecesAndWorkers) {
  for (const std::size_t size : {0UL, 1UL, 1000UL, (1UL << 20) + 1, 9UL << 20}) {
    const Bytes content = sparse(size);
    for (const unsigned workers : {0U, 1U, 3U}) {
      const Bytes frame = compress(content, workers, 300'001);
      ASSERT_TRUE(is_zstd_frame(frame));
      auto reader = ZstdReader::open(frame);
      ASSERT_TRUE(reader.ok());
      EXPECT_EQ(reader->content_bytes(), size);
      Bytes back(size);
      for (std::size_t at = 0; at < size; at += 77'777) {
        ASSERT_TRUE(reader->read(std::span(back).subspan(at, std::min(77'777UL, size - at))).ok());
      }
      EXPECT_TRUE(reader->finish().ok());
      EXPECT_TRUE(back == content) << size << " bytes, " << workers << " workers";
    }
  }
}

TEST(ZstdStream, BytesDoNotDependOnTheNumberOfWorkersOrThePieces) {
  const Bytes content = sparse(7 << 20);
  const Bytes frame = compress(content, 1, 100'000);
  EXPECT_TRUE(frame == compress(content, 2, 256 << 10));
  EXPECT_TRUE(frame == compress(content, 5, 7 << 20));
  const Bytes small = sparse(1 << 20);
  EXPECT_TRUE(compress(small, 0, 4096) == compress(small, 4, 1 << 20));
}

TEST(ZstdStream, SkipDropsExactlySoMuch) {
  std::mt19937_64 random(1);
  const Bytes content = random_bytes(random, 500'000);
  const Bytes frame = zstd_compress(content).value();
  auto reader = ZstdReader::open(frame);
  ASSERT_TRUE(reader->skip(300'001).ok());
  Bytes rest(199'999);
  ASSERT_TRUE(reader->read(rest).ok());
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), content.begin() + 300'001));
  EXPECT_TRUE(reader->finish().ok());
}

TEST(ZstdStream, WriterHoldsItsCallerToTheAnnouncedSize) {
  const auto sink = [](std::span<const std::byte>) { return Status(); };
  auto less = ZstdWriter::create(10, 0, sink);
  ASSERT_TRUE(less->write(Bytes(9)).ok());
  EXPECT_FALSE(less->finish().ok());
  auto more = ZstdWriter::create(10, 0, sink);
  EXPECT_FALSE(more->write(Bytes(11)).ok());
  EXPECT_FALSE(more->finish().ok());
}

TEST(ZstdStream, FailureOfTheSinkComesBackAndStays) {
  std::mt19937_64 random(1);
  const Bytes content = random_bytes(random, 4 << 20);
  for (const unsigned workers : {0U, 2U}) {
    auto writer = ZstdWriter::create(content.size(), workers, [](std::span<const std::byte>) {
      return error(StatusCode::kNoSpace, "full");
    });
    Status status = writer->write(content);
    if (status.ok()) status = writer->finish();
    EXPECT_EQ(status.code(), StatusCode::kNoSpace);
    EXPECT_EQ(writer->finish().code(), StatusCode::kNoSpace);
  }
}

TEST(ZstdStream, ReaderWantsAllContentRead) {
  const Bytes frame = zstd_compress(Bytes(1000)).value();
  auto reader = ZstdReader::open(frame);
  Bytes some(999);
  ASSERT_TRUE(reader->read(some).ok());
  EXPECT_EQ(reader->finish().code(), StatusCode::kCorrupt);
  Bytes two(2);
  EXPECT_EQ(reader->read(two).code(), StatusCode::kCorrupt);
}

TEST(ZstdStream, EveryTruncationAndTrailingByteIsRefused) {
  std::mt19937_64 random(1);
  Bytes content = sparse(3000);
  const Bytes noise = random_bytes(random, 300);
  content.insert(content.end(), noise.begin(), noise.end());
  const Bytes frame = zstd_compress(content).value();
  for (std::size_t size = 0; size < frame.size(); ++size) {
    EXPECT_EQ(read_whole(Bytes(frame.begin(), frame.begin() + std::ptrdiff_t(size))),
              StatusCode::kCorrupt)
        << size;
  }
  Bytes longer = frame;
  longer.push_back(std::byte{0});
  EXPECT_EQ(read_whole(longer), StatusCode::kCorrupt);
  Bytes twice = frame;
  twice.insert(twice.end(), frame.begin(), frame.end());
  EXPECT_EQ(read_whole(twice), StatusCode::kCorrupt);
}

Bytes hand_made(std::initializer_list<unsigned> bytes) {
  Bytes frame;
  for (const unsigned byte : bytes) frame.push_back(static_cast<std::byte>(byte));
  return frame;
}

TEST(ZstdStream, HeadersThatAreNotOursAreRefused) {
  // One empty raw block, last: 01 00 00. Descriptor 20: single segment, one byte of content size.
  EXPECT_EQ(read_whole(hand_made({0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0})), StatusCode::kOk);
  // No content size.
  EXPECT_EQ(read_whole(hand_made({0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x50, 1, 0, 0})),
            StatusCode::kCorrupt);
  // Dictionary 7.
  EXPECT_EQ(read_whole(hand_made({0x28, 0xb5, 0x2f, 0xfd, 0x21, 7, 0, 1, 0, 0})),
            StatusCode::kCorrupt);
  // A window of 2^28 (exponent 18) and content size 256 + 0.
  EXPECT_EQ(read_whole(hand_made({0x28, 0xb5, 0x2f, 0xfd, 0x40, 18 << 3, 0, 0, 1, 0, 0})),
            StatusCode::kCorrupt);
  // A skippable frame.
  EXPECT_EQ(read_whole(hand_made({0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0})), StatusCode::kCorrupt);
  // 2^26 bytes of content in a few bytes: refused before memory is taken for them.
  EXPECT_EQ(read_whole(hand_made({0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 4, 1, 0, 0})),
            StatusCode::kCorrupt);
}

TEST(ZstdStream, DecompressRefusesMoreThanAllowed) {
  const Bytes frame = zstd_compress(Bytes(1001)).value();
  EXPECT_EQ(zstd_decompress(frame, 1000).status().code(), StatusCode::kCorrupt);
  EXPECT_TRUE(zstd_decompress(frame, 1001).ok());
}

}  // namespace
}  // namespace driftless
