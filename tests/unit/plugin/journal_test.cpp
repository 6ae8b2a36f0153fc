// SPDX-License-Identifier: Apache-2.0
#include "plugin/checkpoint/journal.h"

#include <gtest/gtest.h>

#include <array>
#include <fstream>

#include "formats/checkpoint.h"
#include "formats/frame.h"
#include "support/temp_dir.h"
#include "support/weights.h"

namespace driftless {
namespace {

using testing::TempDir;

class JournalTest : public ::testing::Test {
 protected:
  void SetUp() override {
    layout_ = *WeightLayout::make({*TensorSpec::make("t", DType::kBF16, {100})});
    before_.layout = layout_.signature();
    after_ = before_;
    after_.version = 1;
    after_.run = {1, 2};
    after_.digest = Digest{{3, 4}};
  }

  std::vector<std::byte> frame() {
    const std::array<std::uint32_t, 2> offsets = {3, 50};
    const std::array<std::uint16_t, 2> values = {7, 8};
    BucketBuilder builder(layout_, Encoding::kDeltas);
    EXPECT_TRUE(
        builder.add({0, 2, 0, offsets, reinterpret_cast<const std::byte*>(values.data())}).ok());
    std::vector<std::byte> bytes;
    FrameContext context;
    context.layout = layout_.signature();
    context.encoding = Encoding::kDeltas;
    EXPECT_TRUE(encode_frame(context, builder.view(), bytes).ok());
    return bytes;
  }

  void write(int frames) {
    auto writer = JournalWriter::create(fs_, path_);
    ASSERT_TRUE(writer.ok());
    for (int i = 0; i < frames; ++i) ASSERT_TRUE((*writer)->append(frame()).ok());
    EXPECT_FALSE(exists(fs_, path_)) << "visible before it was whole";
    ASSERT_TRUE((*writer)->seal(before_, after_).ok());
    ASSERT_TRUE((*writer)->decide().ok());
  }

  TempDir dir_;
  FileSystem& fs_ = posix_file_system();
  std::string path_ = dir_.file("journal");
  WeightLayout layout_;
  CheckpointState before_, after_;
};

TEST_F(JournalTest, RoundTrips) {
  write(3);
  const auto journal = Journal::open(fs_, path_);
  ASSERT_TRUE(journal.ok()) << journal.status().to_string();
  EXPECT_EQ(journal->before(), before_);
  EXPECT_EQ(journal->after(), after_);
  ASSERT_EQ(journal->frames().size(), 3U);
  const std::vector<std::byte> expected = frame();
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), journal->frames()[1].begin(),
                         journal->frames()[1].end()));
}

TEST_F(JournalTest, MayBeEmpty) {
  write(0);
  const auto journal = Journal::open(fs_, path_);
  ASSERT_TRUE(journal.ok());
  EXPECT_TRUE(journal->frames().empty());
}

TEST_F(JournalTest, LeavesNothingWhereItWasNotCommitted) {
  {
    auto writer = JournalWriter::create(fs_, path_);
    ASSERT_TRUE((*writer)->append(frame()).ok());
    EXPECT_TRUE(exists(fs_, path_ + ".tmp"));
  }
  EXPECT_FALSE(exists(fs_, path_ + ".tmp"));
  EXPECT_FALSE(exists(fs_, path_));
}

TEST_F(JournalTest, RefusesEveryTruncation) {
  write(2);
  const auto text = read_text(fs_, path_, 1 << 20);
  for (std::size_t size = 0; size < text->size(); ++size) {
    const auto bytes = std::as_bytes(std::span(text->data(), size));
    EXPECT_EQ(Journal::parse(bytes, "j").status().code(), StatusCode::kCorrupt) << size;
  }
}

// Frames have hashes of their own, which decode_journal() checks; this test covers every other
// byte.
TEST_F(JournalTest, NoticesEveryFlippedByte) {
  write(2);
  const auto text = read_text(fs_, path_, 1 << 20);
  for (std::size_t at = 0; at < text->size(); ++at) {
    std::string damaged = *text;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    const auto journal =
        Journal::parse(std::as_bytes(std::span(damaged.data(), damaged.size())), "j");
    if (!journal.ok()) continue;
    bool noticed = false;
    for (const auto bytes : journal->frames()) {
      noticed = noticed || !Frame::decode(bytes, layout_, 1 << 20).ok();
    }
    EXPECT_TRUE(noticed) << at;
  }
}

// Replay writes by positions: a frame without positions must not count as one that changes nothing.
TEST_F(JournalTest, AFullFrameIsNotReplayed) {
  const testing::Weights weights = testing::random_weights(1);
  testing::write_checkpoint(dir_.file("checkpoint"), weights);
  const auto checkpoint = Checkpoint::open(fs_, dir_.file("checkpoint"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  const TensorSpec& tensor = checkpoint->layout()[0];
  const std::vector<std::byte> bytes(tensor.size_bytes);
  const std::vector<DenseRun> runs{{0, 0, bytes}};
  FrameContext context;
  context.layout = checkpoint->layout().signature();
  context.encoding = Encoding::kFull;
  std::vector<std::byte> full;
  ASSERT_TRUE(encode_full_frame(context, checkpoint->layout(), tensor.dtype, runs, full).ok());
  auto writer = JournalWriter::create(fs_, path_);
  ASSERT_TRUE(writer.ok() && (*writer)->append(full).ok());
  ASSERT_TRUE((*writer)->seal(before_, after_).ok());
  ASSERT_TRUE((*writer)->decide().ok());
  const auto journal = Journal::open(fs_, path_);
  ASSERT_TRUE(journal.ok()) << journal.status().to_string();
  EXPECT_EQ(decode_journal(*journal, checkpoint->layout(), 1).status().code(),
            StatusCode::kCorrupt);
  EXPECT_TRUE(testing::holds(dir_.file("checkpoint"), weights));
}

TEST(CheckpointStateTest, RoundTripsAndReadsOthers) {
  CheckpointState state;
  state.version = 7;
  state.run = {1, 2};
  state.layout = {3, 4};
  state.digest = Digest{{5, 6}};
  EXPECT_EQ(*parse_state(state_to_json(state), "s"), state);
  const auto others = parse_state(R"({"version":"000007"})", "s");
  ASSERT_TRUE(others.ok());
  EXPECT_EQ(others->version, 7U);
  EXPECT_TRUE(others->run.is_zero());
  EXPECT_FALSE(others->digest.has_value());
}

TEST(CheckpointStateTest, RefusesNonsense) {
  for (const char* text :
       {"", "{}", "[]", R"({"version":7})", R"({"version":"7"})",
        R"({"version":"000007","run":"xyz"})", R"({"version":"000007","digest":5})"}) {
    EXPECT_FALSE(parse_state(text, "s").ok()) << text;
  }
}

}  // namespace
}  // namespace driftless
