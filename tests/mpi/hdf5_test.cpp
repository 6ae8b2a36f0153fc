// SPDX-License-Identifier: Apache-2.0
// The sink of version.h5 under mpirun. Every rank runs all tests in the same order. Within a test
// the ranks communicate only through the sink, and through the barriers and broadcasts that the
// test calls.
#include <gtest/gtest.h>
#include <mpi.h>
#include <sys/mount.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/shared_fs/hdf5_container.h"
#include "support/temp_dir.h"
#include "support/whole_part.h"

namespace driftless {
namespace {

using driftless::testing::read_whole_part;
using driftless::testing::TempDir;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Bytes = std::vector<std::byte>;

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
bool threaded() {
  int level = 0;
  MPI_Query_thread(&level);
  return level >= MPI_THREAD_MULTIPLE;
}
void barrier() { MPI_Barrier(MPI_COMM_WORLD); }
Deadline soon() { return Deadline::after(seconds(30)); }

// The bytes depend on rank and number, so that every rank knows the parts of the others.
Bytes content(unsigned rank, unsigned number, std::size_t size) {
  Bytes bytes(size);
  std::mt19937_64 random(rank * 1'000 + number);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (i % 8 == 0) word = random();
    bytes[i] = static_cast<std::byte>(word >> (8 * (i % 8)));
  }
  return bytes;
}

std::size_t size_of(unsigned rank, unsigned number) {
  return number == 1 ? 0 : 1'000 + 37'003 * number + rank;
}

std::string name_of(unsigned rank, unsigned number) {
  return concat("rank", rank, "_frame", number, ".bin");
}

class Hdf5SinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world_rank() == 0) dir_.emplace();
    std::array<char, 1'024> text{};
    if (dir_) std::copy(dir_->path().begin(), dir_->path().end(), text.begin());
    MPI_Bcast(text.data(), static_cast<int>(text.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    path_ = text.data();
    Result<std::unique_ptr<PartSink>> sink = make_hdf5_sink(MPI_COMM_WORLD, options_);
    ASSERT_TRUE(sink.ok()) << sink.status().to_string();
    sink_ = std::move(*sink);
  }
  void TearDown() override {
    sink_.reset();
    barrier();
  }

  [[nodiscard]] static unsigned rank() { return static_cast<unsigned>(world_rank()); }
  [[nodiscard]] static unsigned ranks() { return static_cast<unsigned>(world_size()); }
  [[nodiscard]] static bool last() { return rank() + 1 == ranks(); }
  [[nodiscard]] std::string file() const { return path_ + "/" + kHdf5FileName; }

  // The leader's call comes first, as the publisher ensures.
  Status begin(const std::string& directory, const Deadline& deadline) {
    Status status;
    if (rank() == 0) status = sink_->begin(directory, deadline);
    barrier();
    if (rank() != 0) status = sink_->begin(directory, deadline);
    return status;
  }
  Status add(const std::string& name, const Bytes& bytes) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<File> part, sink_->create_part(name));
    // Writes the end first, because parts may be written at any offsets.
    const std::size_t half = bytes.size() / 2;
    DRIFTLESS_RETURN_IF_ERROR(part->pwrite(half, std::span(bytes).subspan(half)));
    DRIFTLESS_RETURN_IF_ERROR(part->pwrite(0, std::span(bytes).first(half)));
    return part->sync();
  }
  Status add(unsigned number) {
    return add(name_of(rank(), number), content(rank(), number, size_of(rank(), number)));
  }
  // Publishes a version in which every rank has `count` parts.
  void publish_well(unsigned count) {
    ASSERT_TRUE(begin(path_, soon()).ok());
    for (unsigned k = 0; k < count; ++k) ASSERT_TRUE(add(k).ok());
    const Result<std::vector<PartReceipt>> receipts = sink_->flush(soon());
    ASSERT_TRUE(receipts.ok()) << receipts.status().to_string();
    EXPECT_EQ(receipts->size(), count);
    barrier();
    for (unsigned r = 0; r < ranks(); ++r) {
      for (unsigned k = 0; k < count; ++k) expect_part(r, k, size_of(r, k));
    }
    barrier();
  }
  void expect_part(unsigned of, unsigned number, std::size_t size) {
    const Bytes expected = content(of, number, size);
    PartReceipt receipt;
    receipt.name = name_of(of, number);
    receipt.rank = of;
    receipt.size_bytes = size;
    const Result<MappedFile> part = read_whole_part(make_hdf5_reader(), path_, receipt, soon());
    ASSERT_TRUE(part.ok()) << part.status().to_string();
    EXPECT_TRUE(std::ranges::equal(part->bytes(), expected)) << receipt.name;
  }
  void expect_no_file() {
    barrier();
    // On the leader the file is gone when its flush() returns; abort() does not wait for that.
    for (int i = 0; i < 500 && std::filesystem::exists(file()); ++i) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_FALSE(std::filesystem::exists(file()));
    barrier();
  }

  Hdf5Options options_;
  std::optional<TempDir> dir_;
  std::string path_;
  std::unique_ptr<PartSink> sink_;
};

TEST_F(Hdf5SinkTest, RanksMayHaveDifferentNumbersOfParts) {
  const unsigned count = 2 * rank() + 1;
  ASSERT_TRUE(begin(path_, soon()).ok());
  for (unsigned k = 0; k < count; ++k) ASSERT_TRUE(add(k).ok());
  const Result<std::vector<PartReceipt>> receipts = sink_->flush(soon());
  ASSERT_TRUE(receipts.ok()) << receipts.status().to_string();
  ASSERT_EQ(receipts->size(), count);
  for (unsigned k = 0; k < count; ++k) {
    const Bytes bytes = content(rank(), k, size_of(rank(), k));
    EXPECT_EQ((*receipts)[k].name, name_of(rank(), k));
    EXPECT_EQ((*receipts)[k].rank, rank());
    EXPECT_EQ((*receipts)[k].size_bytes, bytes.size());
    EXPECT_EQ((*receipts)[k].hash, xxh3_128(bytes));
  }
  barrier();
  for (unsigned r = 0; r < ranks(); ++r) {
    for (unsigned k = 0; k < 2 * r + 1; ++k) expect_part(r, k, size_of(r, k));
  }
  barrier();
}

TEST_F(Hdf5SinkTest, ReceiptsAreInTheOrderOfCreationAndHolesAreZero) {
  ASSERT_TRUE(begin(path_, soon()).ok());
  Result<std::unique_ptr<File>> first = sink_->create_part("first");
  Result<std::unique_ptr<File>> second = sink_->create_part("second");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(sink_->create_part("first").status().code(), StatusCode::kAlreadyExists);
  EXPECT_FALSE(sink_->create_part("a/b").ok());
  const Bytes one(1, std::byte{1});
  ASSERT_TRUE((*second)->pwrite(99, one).ok());
  ASSERT_TRUE((*second)->sync().ok());
  ASSERT_TRUE((*first)->pwrite(0, one).ok());
  ASSERT_TRUE((*first)->sync().ok());
  EXPECT_EQ(sink_->flush(soon()).status().code(), StatusCode::kInvalidArgument) << "still open";
  first->reset();
  second->reset();
  const Result<std::vector<PartReceipt>> receipts = sink_->flush(soon());
  ASSERT_TRUE(receipts.ok()) << receipts.status().to_string();
  ASSERT_EQ(receipts->size(), 2U);
  EXPECT_EQ((*receipts)[0].name, "first");
  EXPECT_EQ((*receipts)[1].size_bytes, 100U);
  const Result<MappedFile> part =
      read_whole_part(make_hdf5_reader(), path_, (*receipts)[1], soon());
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  Bytes expected(100);
  expected[99] = std::byte{1};
  EXPECT_TRUE(std::ranges::equal(part->bytes(), expected));
  barrier();
}

TEST_F(Hdf5SinkTest, APublicationWithoutPartsIsAValidFile) {
  ASSERT_TRUE(begin(path_, soon()).ok());
  const Result<std::vector<PartReceipt>> receipts = sink_->flush(soon());
  ASSERT_TRUE(receipts.ok()) << receipts.status().to_string();
  EXPECT_TRUE(receipts->empty());
  PartReceipt none;
  none.name = "none";
  EXPECT_EQ(read_whole_part(make_hdf5_reader(), path_, none, soon()).status().code(),
            StatusCode::kCorrupt);
  barrier();
}

TEST_F(Hdf5SinkTest, OneSinkWritesManyPublications) {
  for (unsigned count : {1U, 4U, 0U, 3U}) publish_well(count);
}

TEST_F(Hdf5SinkTest, ALargePart) {
  constexpr std::size_t kSize = 100'000'000;
  const std::size_t size = last() ? kSize : 100;
  ASSERT_TRUE(begin(path_, soon()).ok());
  ASSERT_TRUE(add(name_of(rank(), 7), content(rank(), 7, size)).ok());
  const Result<std::vector<PartReceipt>> receipts = sink_->flush(soon());
  ASSERT_TRUE(receipts.ok()) << receipts.status().to_string();
  barrier();
  if (rank() == 0) expect_part(ranks() - 1, 7, kSize);
  barrier();
}

// 0 if the command ran and succeeded. The caller skips its test if the tool is missing.
int shell(const std::string& command) { return std::system(command.c_str()); }

TEST_F(Hdf5SinkTest, H5dumpAndH5pyReadIt) {
  publish_well(3);
  if (rank() != 0) return;
  if (shell("command -v h5dump > /dev/null") != 0) GTEST_SKIP() << "h5dump is not installed";
  EXPECT_EQ(shell("h5dump -H " + file() + " > " + path_ + "/header.txt"), 0);
  EXPECT_EQ(shell("h5dump -d /rank0000/" + name_of(0, 0) + " -b LE -o " + path_ + "/part " +
                  file() + " > /dev/null"),
            0);
  std::ifstream raw(path_ + "/part", std::ios::binary);
  const std::string dumped{std::istreambuf_iterator<char>(raw), {}};
  const Bytes expected = content(0, 0, size_of(0, 0));
  ASSERT_EQ(dumped.size(), expected.size());
  EXPECT_EQ(std::memcmp(dumped.data(), expected.data(), expected.size()), 0);

  std::string python;
  for (const char* candidate : {"python3", "/usr/bin/python3"}) {
    if (shell(concat(candidate, " -c 'import h5py' 2> /dev/null")) == 0) python = candidate;
  }
  if (python.empty()) GTEST_SKIP() << "h5py is not installed";
  for (unsigned r = 0; r < ranks(); ++r) {
    for (unsigned k = 0; k < 3; ++k) {
      const Bytes bytes = content(r, k, size_of(r, k));
      std::ofstream(path_ + "/" + name_of(r, k), std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
      std::ofstream(path_ + "/" + name_of(r, k) + ".hash") << to_hex(xxh3_128(bytes));
    }
  }
  std::ofstream(path_ + "/look.py") << R"(
import h5py, pathlib, sys
root, ranks = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with h5py.File(root / "version.h5", "r") as file:
    assert file.attrs["format"] == b"driftless", file.attrs["format"]
    assert file.attrs["format_version"] == 1 and file.attrs["ranks"] == ranks
    assert sorted(file) == [f"rank{r:04d}" for r in range(ranks)], list(file)
    for r in range(ranks):
        group = file[f"rank{r:04d}"]
        assert len(group) == 3
        for name, part in group.items():
            expected = (root / name).read_bytes()
            assert part.dtype == "uint8" and part.shape == (len(expected),)
            assert part.attrs["size"] == len(expected)
            assert part.attrs["xxh3_128"].decode() == (root / (name + ".hash")).read_text()
            assert part[...].tobytes() == expected, name
)";
  EXPECT_EQ(shell(concat(python, " ", path_, "/look.py ", path_, " ", ranks())), 0);
}

TEST_F(Hdf5SinkTest, AnAbortOfOneRankIsEverybodysFailureAndNamesIt) {
  ASSERT_TRUE(begin(path_, soon()).ok());
  ASSERT_TRUE(add(0).ok());
  if (last()) {
    EXPECT_TRUE(sink_->abort().ok());
  } else {
    const Status status = sink_->flush(soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kIncomplete);
    EXPECT_NE(status.message().find(concat("publisher rank ", ranks() - 1, ":")), std::string::npos)
        << status.to_string();
  }
  expect_no_file();
  publish_well(2);
}

TEST_F(Hdf5SinkTest, AllMayAbortAtAnyPlace) {
  for (unsigned count : {0U, 1U, 2U}) {
    ASSERT_TRUE(begin(path_, soon()).ok());
    // Some ranks get further than others; some learn in sync() that another rank aborted.
    for (unsigned k = 0; k < std::min(count + rank(), 2U); ++k) (void)add(k);
    EXPECT_TRUE(sink_->abort().ok());
    EXPECT_TRUE(sink_->abort().ok());
    barrier();
  }
  if (threaded()) expect_no_file();  // else the leader learns with its next call
  publish_well(1);
}

TEST_F(Hdf5SinkTest, APartThatWasNotSyncedFailsTheFlush) {
  ASSERT_TRUE(begin(path_, soon()).ok());
  if (last()) {
    ASSERT_TRUE(sink_->create_part("unfinished").ok());
  }
  const Status status = sink_->flush(soon()).status();
  if (last()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("unfinished"), std::string::npos) << status.to_string();
    EXPECT_TRUE(sink_->abort().ok());
  } else {
    EXPECT_EQ(status.code(), StatusCode::kIncomplete) << status.to_string();
  }
  publish_well(1);
}

TEST_F(Hdf5SinkTest, ARankThatNeverBeganIsWaitedForUntilTheDeadline) {
  if (ranks() == 1) GTEST_SKIP() << "needs two ranks";
  if (!last()) {
    ASSERT_TRUE(sink_->begin(path_, soon()).ok());
    ASSERT_TRUE(add(0).ok());
    const auto started = std::chrono::steady_clock::now();
    const Status status = sink_->flush(Deadline::after(milliseconds(300))).status();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_LT(std::chrono::steady_clock::now() - started, seconds(5));
    EXPECT_TRUE(sink_->abort().ok());
  }
  barrier();
  publish_well(2);  // in the same directory
}

TEST_F(Hdf5SinkTest, ALateRankLearnsThatTheOthersGaveUp) {
  if (ranks() == 1) GTEST_SKIP() << "needs two ranks";
  ASSERT_TRUE(begin(path_, soon()).ok());
  ASSERT_TRUE(add(0).ok());
  if (last()) {
    std::this_thread::sleep_for(milliseconds(600));
    const Status status = sink_->flush(Deadline::after(milliseconds(1'500))).status();
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
  } else {
    EXPECT_EQ(sink_->flush(Deadline::after(milliseconds(200))).status().code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(sink_->abort().ok());
  }
  barrier();
  publish_well(2);
}

// The leader's thread may learn of the last attempt's end when the next attempt's id already
// exists.
TEST_F(Hdf5SinkTest, TheNextAttemptIsLeftAlone) {
  if (ranks() == 1) GTEST_SKIP() << "needs two ranks";
  for (unsigned round = 0; round < 60; ++round) {
    ASSERT_TRUE(begin(path_, soon()).ok());
    ASSERT_TRUE(add(0).ok());
    if (last()) {
      std::this_thread::sleep_for(milliseconds(10 + round % 7));
      (void)sink_->flush(Deadline::after(milliseconds(1'500)));
    } else {
      (void)sink_->flush(Deadline::after(milliseconds(4)));  // in vain, unless this rank is slow
      EXPECT_TRUE(sink_->abort().ok());
    }
    barrier();
    EXPECT_TRUE(begin(path_, Deadline::after(milliseconds(5'000))).ok()) << "round " << round;
    EXPECT_TRUE(sink_->abort().ok());
    barrier();
  }
  publish_well(2);
}

TEST_F(Hdf5SinkTest, PartsWaitForRoomUntilTheDeadline) {
  if (ranks() == 1 || !threaded()) GTEST_SKIP() << "needs two ranks and threads";
  ASSERT_TRUE(begin(path_, Deadline::after(milliseconds(500))).ok());
  if (!last()) {
    EXPECT_TRUE(add(0).ok());
    EXPECT_TRUE(add(1).ok());
    EXPECT_EQ(add(2).code(), StatusCode::kDeadlineExceeded);
  }
  barrier();
  EXPECT_TRUE(sink_->abort().ok());
  barrier();
  publish_well(3);
}

TEST_F(Hdf5SinkTest, APartBeyondTheLimitIsRefused) {
  ASSERT_TRUE(begin(path_, soon()).ok());
  Result<std::unique_ptr<File>> part = sink_->create_part("part");
  ASSERT_TRUE(part.ok());
  const Bytes one(1);
  EXPECT_EQ((*part)->pwrite(options_.max_part_bytes, one).code(), StatusCode::kNoSpace);
  EXPECT_EQ((*part)->pwrite(~std::uint64_t{0}, one).code(), StatusCode::kNoSpace);
  EXPECT_TRUE(sink_->abort().ok());
}

TEST_F(Hdf5SinkTest, AFullDiskFailsOnEveryRankAndLeavesNoFiles) {
  const std::string small = path_ + "/small";
  int mounted = 0;
  if (rank() == 0 && std::filesystem::create_directory(small)) {
    mounted = ::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=8m") == 0 ? 1 : 0;
  }
  MPI_Bcast(&mounted, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (mounted == 0) GTEST_SKIP() << "no right to mount a small file system";
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(begin(small, soon()).ok());
    ASSERT_TRUE(add("part", Bytes(last() ? 10U << 20 : 10U)).ok());
    const Status status = sink_->flush(soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status.to_string();
    EXPECT_TRUE(sink_->abort().ok());
    barrier();
    EXPECT_TRUE(std::filesystem::is_empty(small));
    barrier();
  }
  if (rank() == 0) {
    EXPECT_EQ(::umount(small.c_str()), 0);
  }
  publish_well(2);
}

TEST_F(Hdf5SinkTest, ADirectoryThatARankDoesNotSeeIsAnError) {
  const std::string nowhere = path_ + "/nowhere";
  const Status status = begin(nowhere, Deadline::after(milliseconds(100)));
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("nowhere"), std::string::npos) << status.to_string();
  EXPECT_TRUE(sink_->abort().ok());
  barrier();
  publish_well(1);
}

TEST_F(Hdf5SinkTest, ASinkMayBeDestroyedInTheMiddle) {
  ASSERT_TRUE(begin(path_, soon()).ok());
  ASSERT_TRUE(add(0).ok());
  const auto started = std::chrono::steady_clock::now();
  sink_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - started, options_.close_wait);
  expect_no_file();
}

// Seeded: all ranks know what each of them does in each publication.
TEST_F(Hdf5SinkTest, ManyPublicationsWithRandomFailures) {
  for (unsigned round = 0; round < 40; ++round) {
    std::mt19937 random(round);
    const unsigned bad = random() % (2 * ranks());  // often no rank
    const unsigned after = random() % 3;
    ASSERT_TRUE(begin(path_, soon()).ok());
    Status status;
    for (unsigned k = 0; k < 3 && status.ok(); ++k) {
      if (bad == rank() && k == after) status = error(StatusCode::kIo, "planted");
      if (status.ok()) status = add(k);
    }
    if (status.ok()) status = sink_->flush(soon()).status();
    EXPECT_EQ(status.ok(), bad >= ranks()) << "round " << round << ": " << status.to_string();
    if (!status.ok()) {
      EXPECT_TRUE(sink_->abort().ok());
    }
    barrier();
    for (unsigned r = 0; status.ok() && r < ranks(); ++r) expect_part(r, 2, size_of(r, 2));
    barrier();
  }
}

// Prints the failures of all ranks.
class FailurePrinter final : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", world_rank(), result.file_name(),
                 result.line_number(), result.summary());
  }
};

}  // namespace
}  // namespace driftless

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  int level = MPI_THREAD_MULTIPLE;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--threads=serialized") level = MPI_THREAD_SERIALIZED;
  }
  int provided = 0;
  MPI_Init_thread(&argc, &argv, level, &provided);
  if (driftless::world_rank() != 0) {
    ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new driftless::FailurePrinter);
  }
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
