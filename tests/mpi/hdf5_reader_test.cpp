// SPDX-License-Identifier: Apache-2.0
// The reader of version.h5, in a process that never initializes MPI, against files that HDF5's own
// serial calls made.
#include <gtest/gtest.h>
#include <hdf5.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "collectives/shared_fs/hdf5_container.h"
#include "support/temp_dir.h"
#include "support/whole_part.h"

namespace driftless {
namespace {

using driftless::testing::read_whole_part;
using driftless::testing::TempDir;

std::vector<unsigned char> some_bytes(std::size_t count) {
  std::vector<unsigned char> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 251);
  return bytes;
}

PartReceipt receipt_of(const std::string& name, std::uint64_t size) {
  PartReceipt receipt;
  receipt.name = name;
  receipt.rank = 3;
  receipt.size_bytes = size;
  return receipt;
}

class Hdf5ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    file_ = H5Fcreate(path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(file_, 0);
    group_ = H5Gcreate2(file_, "/rank0003", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(group_, 0);
  }
  void TearDown() override { close(); }

  [[nodiscard]] std::string path() const { return dir_.file("version.h5"); }
  void close() {
    if (file_ < 0) return;
    H5Gclose(group_);
    H5Fclose(file_);
    file_ = -1;
  }
  void add(const std::string& name, const std::vector<hsize_t>& shape, hid_t type,
           const void* bytes, hid_t properties = H5P_DEFAULT) const {
    const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
    const hid_t data =
        H5Dcreate2(group_, name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    ASSERT_GE(data, 0);
    if (bytes != nullptr) {
      ASSERT_GE(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes), 0);
    }
    H5Dclose(data);
    H5Sclose(space);
  }
  [[nodiscard]] Result<MappedFile> fetch(const std::string& name, std::uint64_t size) {
    return read_whole_part(reader_, dir_.path(), receipt_of(name, size),
                           Deadline::after(std::chrono::seconds(10)));
  }
  [[nodiscard]] StatusCode code_of(const std::string& name, std::uint64_t size) {
    return fetch(name, size).status().code();
  }

  TempDir dir_{TempDir::Where::kMemory};
  PartReader reader_ = make_hdf5_reader();
  hid_t file_ = -1, group_ = -1;
};

TEST_F(Hdf5ReaderTest, ReturnsTheBytesOfAPartAlsoAfterTheFileHasGone) {
  const std::vector<unsigned char> bytes = some_bytes(100'003);
  add("a", {bytes.size()}, H5T_STD_U8LE, bytes.data());
  add("empty", {0}, H5T_STD_U8LE, nullptr);
  close();
  const Result<MappedFile> part = fetch("a", bytes.size());
  const Result<MappedFile> empty = fetch("empty", 0);
  ASSERT_TRUE(part.ok()) << part.status().to_string();
  ASSERT_TRUE(empty.ok()) << empty.status().to_string();
  std::filesystem::remove(path());
  ASSERT_EQ(part->bytes().size(), bytes.size());
  EXPECT_EQ(std::memcmp(part->bytes().data(), bytes.data(), bytes.size()), 0);
  EXPECT_TRUE(empty->bytes().empty());
}

TEST_F(Hdf5ReaderTest, AMissingFileIsIncomplete) {
  close();
  std::filesystem::remove(path());
  EXPECT_EQ(code_of("a", 10), StatusCode::kIncomplete);
}

TEST_F(Hdf5ReaderTest, AFileCutAnywhereIsIncomplete) {
  const std::vector<unsigned char> bytes = some_bytes(20'000);
  add("a", {bytes.size()}, H5T_STD_U8LE, bytes.data());
  close();
  const std::uintmax_t whole = std::filesystem::file_size(path());
  for (const std::uintmax_t size : {whole - 1, whole / 2, std::uintmax_t{100}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(path(), size);
    EXPECT_EQ(code_of("a", bytes.size()), StatusCode::kIncomplete) << size << " of " << whole;
  }
}

TEST_F(Hdf5ReaderTest, AFileThatIsNoHdf5IsIncomplete) {
  close();
  std::ofstream(path()) << std::string(5'000, 'x');
  const Result<MappedFile> part = fetch("a", 10);
  EXPECT_EQ(part.status().code(), StatusCode::kIncomplete);
  EXPECT_NE(part.status().message().find(path()), std::string::npos);
}

TEST_F(Hdf5ReaderTest, WhatIsNotThePartIsCorrupt) {
  const std::vector<unsigned char> bytes = some_bytes(4'000);
  add("a", {1'000}, H5T_STD_U8LE, bytes.data());
  add("square", {10, 100}, H5T_STD_U8LE, bytes.data());
  add("wide", {1'000}, H5T_STD_U32LE, bytes.data());
  add("signed", {1'000}, H5T_STD_I8LE, bytes.data());
  close();
  EXPECT_EQ(code_of("a", 999), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("a", 1'001), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("b", 1'000), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("square", 1'000), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("wide", 1'000), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("signed", 1'000), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("../rank0003/a", 1'000), StatusCode::kCorrupt);
  EXPECT_TRUE(fetch("a", 1'000).ok());
}

TEST_F(Hdf5ReaderTest, NothingIsReadFromOutsideTheFile) {
  const std::vector<unsigned char> bytes = some_bytes(1'000);
  std::ofstream(dir_.file("secret")) << std::string(1'000, 's');
  add("a", {bytes.size()}, H5T_STD_U8LE, bytes.data());
  H5Lcreate_soft("/rank0003/a", group_, "soft", H5P_DEFAULT, H5P_DEFAULT);
  H5Lcreate_external(path().c_str(), "/rank0003/a", group_, "elsewhere", H5P_DEFAULT, H5P_DEFAULT);
  const hid_t external = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_external(external, dir_.file("secret").c_str(), 0, 1'000);
  add("outside", {1'000}, H5T_STD_U8LE, nullptr, external);
  H5Pclose(external);
  close();
  EXPECT_EQ(code_of("soft", 1'000), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("elsewhere", 1'000), StatusCode::kCorrupt);
  EXPECT_EQ(code_of("outside", 1'000), StatusCode::kCorrupt);
}

TEST_F(Hdf5ReaderTest, FilteredDataIsRefused) {
  const std::vector<unsigned char> bytes = some_bytes(1'000);
  const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
  const hsize_t chunk = 100;
  H5Pset_chunk(chunked, 1, &chunk);
  H5Pset_shuffle(chunked);
  add("chunked", {1'000}, H5T_STD_U8LE, bytes.data(), chunked);
  H5Pclose(chunked);
  close();
  EXPECT_EQ(code_of("chunked", 1'000), StatusCode::kCorrupt);
}

// A dataset may claim any length without holding it.
TEST_F(Hdf5ReaderTest, NoMemoryIsTakenForALengthThatTheFileCannotHold) {
  add("huge", {hsize_t{1} << 50}, H5T_STD_U8LE, nullptr);
  close();
  EXPECT_EQ(code_of("huge", std::uint64_t{1} << 50), StatusCode::kIncomplete);
}

TEST_F(Hdf5ReaderTest, ALateCallIsRefused) {
  close();
  const Result<MappedFile> part = read_whole_part(reader_, dir_.path(), receipt_of("a", 1),
                                                  Deadline::after(std::chrono::milliseconds(0)));
  EXPECT_EQ(part.status().code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace driftless
