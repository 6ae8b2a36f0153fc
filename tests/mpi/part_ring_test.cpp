// SPDX-License-Identifier: Apache-2.0
// Places of parts in the ring; needs no MPI.
#include "collectives/mpi_rma/part_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <thread>

namespace driftless::mpi_rma {
namespace {

class PartRingTest : public ::testing::Test {
 protected:
  void make(std::uint64_t bytes, unsigned versions = 100) {
    memory_.assign(bytes, std::byte{0xee});
    ring_ = std::make_shared<PartRing>(memory_, versions, "road.ring_size",
                                       [this](std::uint64_t version) { raise(version); });
  }
  void raise(std::uint64_t version) {
    EXPECT_GE(version, from_) << "it never falls";
    from_ = version;
    // raise() is called before anything is overwritten.
    check_all();
    std::erase_if(there_, [&](const auto& entry) { return entry.first.first < version; });
  }
  void check_all() const {
    for (const auto& [key, part] : there_) {
      const auto bytes = std::span(memory_).subspan(part.first, part.second.size());
      ASSERT_TRUE(std::ranges::equal(bytes, part.second)) << "version " << key.first;
    }
  }
  static std::vector<std::byte> bytes(std::uint64_t size, unsigned seed) {
    std::vector<std::byte> out(size);
    for (std::uint64_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 31 + seed * 7 + 1);
    return out;
  }
  Status write(const std::string& name, const std::vector<std::byte>& content, std::size_t piece) {
    DRIFTLESS_ASSIGN_OR_RETURN(const auto file, ring_->create(name));
    for (std::size_t at = 0; at < content.size(); at += piece) {
      const std::size_t size = std::min(piece, content.size() - at);
      DRIFTLESS_RETURN_IF_ERROR(file->pwrite(at, std::span(content).subspan(at, size)));
    }
    return file->sync();
  }
  // Publishes parts of these sizes; checks that parts which were not raised keep their bytes.
  Status publish(std::uint64_t version, const std::vector<std::uint64_t>& sizes) {
    ring_->begin(version);
    std::vector<std::vector<std::byte>> contents;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      contents.push_back(bytes(sizes[i], static_cast<unsigned>(version * 10 + i)));
      DRIFTLESS_RETURN_IF_ERROR(write(concat("part", i), contents.back(), 777));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const auto receipts, ring_->flush());
    const std::string manifest = concat("manifest of ", version);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::uint64_t at, ring_->append(manifest));
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(&memory_[at]), manifest.size()),
              manifest);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(receipts[i].hash, xxh3_128(contents[i]));
      EXPECT_EQ(receipts[i].size_bytes, sizes[i]);
      PartLabel label;
      std::memcpy(&label, &memory_[receipts[i].locator - sizeof(label)], sizeof(label));
      EXPECT_EQ(label, (PartLabel{.version = version,
                                  .size_bytes = sizes[i],
                                  .name = xxh3_128(concat("part", i))}));
      there_[{version, i}] = {receipts[i].locator, contents[i]};
    }
    ring_->finish();
    check_all();
    return {};
  }

  std::vector<std::byte> memory_;
  std::shared_ptr<PartRing> ring_;
  std::uint64_t from_ = 0;
  std::map<std::pair<std::uint64_t, std::size_t>, std::pair<std::uint64_t, std::vector<std::byte>>>
      there_;
};

TEST_F(PartRingTest, WhatIsNotRaisedIsNeverOverwritten) {
  make(64 * 1024);
  std::mt19937 random(1);
  for (std::uint64_t v = 1; v <= 2000; ++v) {
    std::vector<std::uint64_t> sizes(random() % 5);
    for (std::uint64_t& size : sizes) size = random() % 3 == 0 ? 0 : random() % 9000;
    if (v % 9 == 0) {  // one that is dropped half way
      ring_->begin(v);
      ASSERT_TRUE(write("dropped", bytes(random() % 30'000, 3), 4000).ok());
      ring_->drop();
      check_all();
    }
    const Status status = publish(v, sizes);
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_LE(from_, v);
  }
  EXPECT_GT(from_, 1900U) << "the ring went around";
}

TEST_F(PartRingTest, APublicationThatFitsAloneAlwaysFits) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    make(64 * 100);
    from_ = 0;
    there_.clear();
    ASSERT_TRUE(publish(1, {random() % 5000}).ok());  // so that it begins anywhere
    // Parts that fill the memory, except the space that the manifest needs.
    std::vector<std::uint64_t> sizes;
    std::uint64_t left = 64 * 100 - 64;
    while (left >= 128) {
      const std::uint64_t size = std::min<std::uint64_t>(left - 64, 64 * (random() % 60));
      sizes.push_back(size);
      left -= size + 64;
    }
    Status status = publish(2, sizes);
    if (!status.ok()) {  // no room after the parts: the next attempt starts at offset 0
      ASSERT_EQ(status.code(), StatusCode::kNoSpace);
      ring_->drop();
      status = publish(2, sizes);
    }
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
}

TEST_F(PartRingTest, TooLargeNamesTheOption) {
  make(4096);
  ring_->begin(1);
  const Status status = write("part", bytes(4097, 1), 512);
  ASSERT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_NE(status.message().find("road.ring_size"), std::string_view::npos);
  ring_->drop();
  ASSERT_TRUE(publish(1, {1000}).ok());
  ring_->begin(2);
  EXPECT_FALSE(write("a", bytes(3000, 1), 512).ok() && write("b", bytes(2000, 1), 512).ok());
}

TEST_F(PartRingTest, NoMoreVersionsThanAllowed) {
  make(1 << 20, 3);
  for (std::uint64_t v = 1; v <= 7; ++v) {
    ASSERT_TRUE(publish(v, {10}).ok());
    EXPECT_EQ(from_, v <= 3 ? 0 : v - 2);
  }
}

TEST_F(PartRingTest, SeveralThreadsWriteSeveralOpenParts) {
  make(1 << 20);
  for (std::uint64_t v = 1; v <= 20; ++v) {
    ring_->begin(v);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
      auto file = ring_->create(concat("part", i));
      ASSERT_TRUE(file.ok());
      std::shared_ptr<File> shared = std::move(*file);
      const std::vector<std::byte> content = bytes(60'000 + i, i);
      threads.emplace_back([shared, content] {
        // Two threads, one half each.
        std::thread other(
            [&] { EXPECT_TRUE(shared->pwrite(30'000, std::span(content).subspan(30'000)).ok()); });
        EXPECT_TRUE(shared->pwrite(0, std::span(content).first(30'000)).ok());
        other.join();
        EXPECT_TRUE(shared->sync().ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto receipts = ring_->flush();
    ASSERT_TRUE(receipts.ok()) << receipts.status().to_string();
    for (unsigned i = 0; i < 4; ++i) {
      const PartReceipt& part = (*receipts)[i];
      EXPECT_EQ(part.hash, xxh3_128(bytes(60'000 + i, i)));
      EXPECT_EQ(part.hash, xxh3_128(std::span<const std::byte>(memory_).subspan(part.locator,
                                                                                part.size_bytes)));
    }
    ring_->finish();
  }
}

TEST_F(PartRingTest, AFileOfADroppedPublicationChangesNothing) {
  make(4096);
  ring_->begin(1);
  auto file = ring_->create("part");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->pwrite(0, bytes(100, 1)).ok());
  ring_->drop();
  ASSERT_TRUE(publish(1, {200}).ok());
  EXPECT_EQ((*file)->pwrite(0, bytes(100, 2)).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE((*file)->sync().ok());
  file->reset();
  check_all();
}

}  // namespace
}  // namespace driftless::mpi_rma
