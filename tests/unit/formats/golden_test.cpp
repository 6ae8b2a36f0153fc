// SPDX-License-Identifier: Apache-2.0
// The bytes in tests/golden are the formats: a change of them is a change of the wire. Run with
// DRIFTLESS_WRITE_GOLDEN=1 to write files that are missing (tests/golden/README.md).
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "formats/flush_file.h"
#include "formats/frame.h"
#include "formats/tensor_patcher.h"
#include "formats/zstd_stream.h"
#include "support/checkout_paths.h"
#include "support/golden_case.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using testing::Bytes;
using testing::decode_all;
using testing::golden_bucket;
using testing::golden_context;
using testing::golden_even_bucket;
using testing::golden_layout;
using testing::golden_new_bytes;
using testing::golden_old_bytes;
using testing::golden_tensor;

constexpr std::uint64_t kMaxBytes = 1 << 20;
constexpr Encoding kPositional[] = {Encoding::kIndices, Encoding::kDeltas, Encoding::kDeltasZstd};

Bytes read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Bytes bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

// The committed bytes of `name`; `fresh` is what this build makes of the same input.
Bytes golden(const std::string& name, const Bytes& fresh) {
  const std::string path = std::string(testing::test_data()) + "/golden/" + name;
  if (std::getenv("DRIFTLESS_WRITE_GOLDEN") != nullptr && !std::ifstream(path).good()) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(fresh.data()), std::ssize(fresh));
  }
  Bytes bytes = read_file(path);
  EXPECT_FALSE(bytes.empty()) << path << " is missing";
  return bytes;
}

std::string name_of(std::string_view what, Encoding encoding, std::string_view ending) {
  return concat(what, "_", info(encoding).name, ending);
}

ByteSink into(Bytes& out) {
  return [&out](std::span<const std::byte> bytes) {
    out.insert(out.end(), bytes.begin(), bytes.end());
    return Status();
  };
}

TEST(Golden, Frames) {
  const WeightLayout layout = golden_layout();
  for (const Encoding encoding : kPositional) {
    const BucketBuilder bucket = encoding == Encoding::kDeltasZstd
                                     ? golden_even_bucket(layout)
                                     : golden_bucket(layout, encoding);
    Bytes fresh;
    ASSERT_TRUE(encode_frame(golden_context(layout, encoding), bucket.view(), fresh).ok());
    const Bytes committed = golden(name_of("frame", encoding, ".bin"), fresh);
    if (encoding != Encoding::kDeltasZstd) {
      EXPECT_EQ(committed, fresh);
    }
    const auto frame = Frame::decode(committed, layout, kMaxBytes);
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    EXPECT_EQ(frame->info().context, golden_context(layout, encoding));
    EXPECT_EQ(frame->info().dtype, DType::kBF16);
    EXPECT_EQ(decode_all(layout, frame->bucket()).value(),
              decode_all(layout, bucket.view()).value());
  }
}

TEST(Golden, FullFrame) {
  const WeightLayout layout = golden_layout();
  const FrameContext context = golden_context(layout, Encoding::kFull);
  const auto runs = testing::golden_runs();
  Bytes fresh;
  ASSERT_TRUE(
      encode_full_frame(context, layout, DType::kBF16, testing::views_of(runs), fresh).ok());
  const Bytes committed = golden("frame_full.bin", fresh);
  EXPECT_EQ(committed, fresh);
  const auto frame = Frame::decode(committed, layout, kMaxBytes);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  EXPECT_EQ(frame->info().context, context);
  const std::vector<DenseRun> found = frame->runs();
  ASSERT_EQ(found.size(), runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(found[i].tensor, runs[i].tensor);
    EXPECT_EQ(found[i].first_unit, runs[i].first_unit);
    EXPECT_TRUE(std::ranges::equal(found[i].bytes, runs[i].bytes));
  }
}

// Cut by rows, by columns, and by both; and runs of such blocks.
TEST(Golden, FramesOfBlocks) {
  const WeightLayout layout = golden_layout();
  const testing::GoldenBlocks blocks(layout);
  Bytes fresh;
  ASSERT_TRUE(
      encode_frame(golden_context(layout, Encoding::kDeltas), blocks.bucket().view(), fresh).ok());
  const Bytes committed = golden("frame_blocks.bin", fresh);
  EXPECT_EQ(committed, fresh);
  const auto frame = Frame::decode(committed, layout, kMaxBytes);
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  EXPECT_EQ(decode_all(layout, frame->bucket()).value(), blocks.changes());

  Bytes full;
  ASSERT_TRUE(encode_full_frame(golden_context(layout, Encoding::kFull), layout, DType::kBF16,
                                blocks.runs(), full)
                  .ok());
  const Bytes committed_full = golden("frame_full_blocks.bin", full);
  EXPECT_EQ(committed_full, full);
  EXPECT_TRUE(Frame::decode(committed_full, layout, kMaxBytes).ok());
}

TEST(Golden, FlushFiles) {
  const testing::TempDir dir;
  FileSystem& fs = posix_file_system();
  const WeightLayout layout = golden_layout();
  for (const Encoding encoding : kPositional) {
    const BucketBuilder bucket = golden_bucket(layout, encoding);
    const std::string name = name_of("flush", encoding, ".safetensors");
    ASSERT_TRUE(write_flush_file(fs, dir.file(name), layout, bucket.view(), encoding, 7,
                                 {{"driftless.run", "0123456789abcdeffedcba9876543210"}})
                    .ok());
    const Bytes fresh = read_file(dir.file(name));
    const Bytes committed = golden(name, fresh);
    if (encoding == Encoding::kDeltasZstd) {
      EXPECT_EQ(zstd_decompress(committed, kMaxBytes).value(),
                zstd_decompress(fresh, kMaxBytes).value());
    } else {
      EXPECT_EQ(committed, fresh);
    }
    const std::string path = std::string(testing::test_data()) + "/golden/" + name;
    const auto file = FlushFile::open(fs, fs.map(path).value(), layout, 7, dir.path());
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(file->encoding(), encoding);
    EXPECT_EQ(decode_all(layout, file->buckets().front()).value(),
              decode_all(layout, bucket.view()).value());
  }
}

Bytes patched(TensorPatcher& patcher) {
  Bytes bytes = golden_old_bytes();
  EXPECT_TRUE(patcher.patch(0, std::span(bytes).first(512)).ok());
  EXPECT_TRUE(patcher.patch(512, std::span(bytes).subspan(512)).ok());
  EXPECT_TRUE(patcher.finish().ok());
  return bytes;
}

TEST(Golden, XorPayload) {
  Bytes fresh;
  ASSERT_TRUE(encode_xor(golden_old_bytes(), golden_new_bytes(), 0, into(fresh)).ok());
  const Bytes committed = golden("payload_xor.zst", fresh);
  EXPECT_EQ(zstd_decompress(committed, kMaxBytes).value(),
            zstd_decompress(fresh, kMaxBytes).value());
  auto patcher = make_xor_patcher(golden_tensor(), committed);
  ASSERT_TRUE(patcher.ok()) << patcher.status().message();
  EXPECT_EQ(patched(**patcher), golden_new_bytes());
}

TEST(Golden, OverwritePayload) {
  testing::OwnedDelta delta;
  const Bytes old_bytes = golden_old_bytes(), new_bytes = golden_new_bytes();
  for (std::uint32_t k = 0; k < new_bytes.size(); ++k) {
    if (old_bytes[k] == new_bytes[k]) continue;
    delta.offsets.push_back(k);
    delta.values.push_back(new_bytes[k]);
  }
  Bytes fresh;
  auto encoder = OverwriteEncoder::create(golden_tensor(), delta.offsets.size(), 0, into(fresh));
  ASSERT_TRUE(encoder.ok());
  ASSERT_TRUE(encoder->add_positions(delta.view()).ok());
  ASSERT_TRUE(encoder->add_values(delta.view()).ok());
  ASSERT_TRUE(encoder->finish().ok());
  const Bytes committed = golden("payload_overwrite.zst", fresh);
  EXPECT_EQ(zstd_decompress(committed, kMaxBytes).value(),
            zstd_decompress(fresh, kMaxBytes).value());
  auto patcher = make_overwrite_patcher(golden_tensor(), committed);
  ASSERT_TRUE(patcher.ok()) << patcher.status().message();
  EXPECT_EQ(patched(**patcher), golden_new_bytes());
}

}  // namespace
}  // namespace driftless
