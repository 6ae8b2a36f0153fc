// SPDX-License-Identifier: Apache-2.0
// Packs: parts of several ranks in one file. tests/contract has what every road must do with them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>

#include "collectives/shared_fs/shared_fs_road.h"
#include "support/road_contract.h"
#include "support/temp_dir.h"
#include "support/whole_part.h"

namespace driftless::testing {
namespace {

namespace stdfs = std::filesystem;

class PartPacksTest : public ::testing::Test {
 protected:
  // Sinks of so many ranks, all of the pack `number`.
  void begin(unsigned ranks, unsigned number = 3) {
    for (unsigned rank = 0; rank < ranks; ++rank) {
      sinks_.push_back(make_part_packs_sink(posix_file_system(), number));
      ASSERT_OK(sinks_.back()->begin(dir_.path(), soon()));
    }
  }
  static Status write(PartSink& sink, const TestPart& part) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, sink.create_part(part.name));
    DRIFTLESS_RETURN_IF_ERROR(file->pwrite(0, part.bytes));
    return file->sync();
  }
  void expect_part(const PartReceipt& receipt, const TestPart& part) {
    const auto got = read_whole_part(reader_, dir_.path(), receipt, soon());
    ASSERT_OK(got);
    EXPECT_TRUE(std::ranges::equal(got->bytes(), part.bytes)) << part.name;
    EXPECT_EQ(receipt.hash, xxh3_128(part.bytes));
  }
  [[nodiscard]] StatusCode code_of(const PartReceipt& receipt) {
    return read_whole_part(reader_, dir_.path(), receipt, soon()).status().code();
  }
  [[nodiscard]] std::vector<std::string> names() const {
    return *posix_file_system().list(dir_.path());
  }

  TempDir dir_{TempDir::Where::kMemory};
  PartReader reader_ = make_part_files_reader(posix_file_system());
  std::vector<std::unique_ptr<PartSink>> sinks_;
};

TEST_F(PartPacksTest, ManyRanksWriteIntoOneFileAtTheSameTime) {
  constexpr unsigned kRanks = 8;
  begin(kRanks);
  const RankParts parts = some_parts(kRanks, 5, 30'000, 1);
  std::vector<std::future<Result<std::vector<PartReceipt>>>> ranks;
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank]() -> Result<std::vector<PartReceipt>> {
      for (const TestPart& part : parts[rank]) {
        DRIFTLESS_RETURN_IF_ERROR(write(*sinks_[rank], part));
      }
      return sinks_[rank]->flush(soon());
    }));
  }
  for (unsigned rank = 0; rank < kRanks; ++rank) {
    const auto receipts = ranks[rank].get();
    ASSERT_OK(receipts);
    ASSERT_EQ(receipts->size(), parts[rank].size());
    for (std::size_t i = 0; i < receipts->size(); ++i) {
      expect_part((*receipts)[i], parts[rank][i]);
    }
  }
  EXPECT_EQ(names(), std::vector<std::string>{"parts0003.pack"});
}

TEST_F(PartPacksTest, APackThatIsMappedIsReadTheSame) {
  begin(1);
  const TestPart first{"first", random_part(5'000, 2)};
  const TestPart second{"second", random_part(7'000, 3)};
  ASSERT_OK(write(*sinks_[0], first));
  ASSERT_OK(write(*sinks_[0], second));
  const auto receipts = sinks_[0]->flush(soon());
  ASSERT_OK(receipts);
  reader_ = make_part_files_reader(posix_file_system(), 100);
  expect_part((*receipts)[0], first);
  expect_part((*receipts)[1], second);
}

TEST_F(PartPacksTest, WhatIsNotThePartIsRefused) {
  begin(1);
  ASSERT_OK(write(*sinks_[0], {"first", random_part(5'000, 4)}));
  ASSERT_OK(write(*sinks_[0], {"second", random_part(5'000, 5)}));
  const auto receipts = sinks_[0]->flush(soon());
  ASSERT_OK(receipts);
  const PartReceipt good = (*receipts)[0];
  ASSERT_EQ(code_of(good), StatusCode::kOk);

  PartReceipt wrong = good;
  wrong.locator = (*receipts)[1].locator;
  EXPECT_EQ(code_of(wrong), StatusCode::kCorrupt) << "of another part";
  wrong = good;
  wrong.locator += 1;
  EXPECT_EQ(code_of(wrong), StatusCode::kCorrupt) << "between labels";
  wrong = good;
  wrong.size_bytes = 4'999;
  EXPECT_EQ(code_of(wrong), StatusCode::kCorrupt);
  wrong = good;
  wrong.locator = pack_locator(4, 0);
  EXPECT_EQ(code_of(wrong), StatusCode::kIncomplete) << "a pack that is not there";
  wrong.locator = ~std::uint64_t{0};
  EXPECT_EQ(code_of(wrong), StatusCode::kIncomplete);

  const std::string pack = dir_.file("parts0003.pack");
  stdfs::resize_file(pack, 3'000);
  EXPECT_EQ(code_of(good), StatusCode::kIncomplete) << "cut short";
  stdfs::resize_file(pack, 10);
  EXPECT_EQ(code_of(good), StatusCode::kIncomplete) << "not even the label";
}

TEST_F(PartPacksTest, AFileThatIsClosedAfterTheAbortWritesNothing) {
  begin(1);
  auto file = sinks_[0]->create_part("late");
  ASSERT_OK(file);
  ASSERT_OK((*file)->pwrite(0, random_part(100, 6)));
  ASSERT_OK((*file)->sync());
  ASSERT_OK(sinks_[0]->abort());
  file->reset();
  EXPECT_TRUE(names().empty());
}

TEST_F(PartPacksTest, APartThatCouldNotBeWrittenFailsTheFlush) {
  begin(1);
  stdfs::create_directory(dir_.file("parts0003.pack"));
  ASSERT_OK(write(*sinks_[0], {"part", random_part(100, 7)}));
  const auto receipts = sinks_[0]->flush(soon());
  ASSERT_FALSE(receipts.ok());
  EXPECT_NE(receipts.status().message().find("parts0003.pack"), std::string::npos);
}

TEST_F(PartPacksTest, RanksShareAsManyPacksAsConfigured) {
  SharedFsOptions options;
  options.part_files = 8;
  EXPECT_FALSE(pack_of(options, 3, 8));
  std::vector<unsigned> ranks_of(8);
  for (unsigned rank = 0; rank < 100; ++rank) {
    const auto pack = pack_of(options, rank, 100);
    ASSERT_TRUE(pack && *pack < 8);
    ++ranks_of[*pack];
  }
  const auto [least, most] = std::ranges::minmax(ranks_of);
  EXPECT_LE(most - least, 1U);
  options.dir = dir_.path();
  for (const unsigned files : {0U, kMostPacks + 1}) {
    options.part_files = files;
    EXPECT_EQ(make_shared_fs_receiver(posix_file_system(), options).status().code(),
              StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace driftless::testing
