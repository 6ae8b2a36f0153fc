// SPDX-License-Identifier: Apache-2.0
// A commit reads back what it has written, inside the pause: the commit itself finds memory that
// does not keep a write, not only the next sweep.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "plugin/targets/mapped_target.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

// Bad memory: both halves are the same bytes, so a write to one half overwrites the other.
class FoldedMemory {
 public:
  FoldedMemory() : half_bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    const int file = ::memfd_create("folded", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file, static_cast<off_t>(half_bytes_)), 0);
    void* const room =
        ::mmap(nullptr, size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = static_cast<std::byte*>(room);
    for (std::byte* half : {data_, data_ + half_bytes_}) {
      EXPECT_EQ(::mmap(half, half_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0),
                half);
    }
    ::close(file);
  }
  ~FoldedMemory() { ::munmap(data_, size()); }
  FoldedMemory(const FoldedMemory&) = delete;
  FoldedMemory& operator=(const FoldedMemory&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return 2 * half_bytes_; }

 private:
  std::size_t half_bytes_;
  std::byte* data_ = nullptr;
};

// A tensor in such memory. In version 0 its halves are equal; in version 1 they differ in one unit.
class ReadBack : public ::testing::Test {
 protected:
  static constexpr std::size_t kUnit = 7;

  ReadBack() {
    std::memcpy(memory_.data(), base_["w"].bytes.data(), memory_.size());
    Weights next = base_;
    std::vector<std::byte>& bytes = next["w"].bytes;
    bytes[kUnit * 2] ^= std::byte{1};
    bytes[memory_.size() / 2 + kUnit * 2] ^= std::byte{2};
    run_.weights.push_back(next);
    auto target = make_memory_target(run_.layout, {memory_.data()}, VersionId{run_.run, 0}, 1);
    EXPECT_TRUE(target.ok()) << target.status().to_string();
    target_ = std::move(*target);
  }

  Weights folded() const {
    std::mt19937_64 random(3);
    Weights weights;
    TestTensor& tensor = weights["w"] =
        random_tensor(DType::kBF16, {memory_.size() / sizeof(std::uint16_t)}, random);
    const auto half = static_cast<std::ptrdiff_t>(memory_.size() / 2);
    std::copy_n(tensor.bytes.begin(), half, tensor.bytes.begin() + half);
    return weights;
  }
  Status commit(const FetchedVersion& version) {
    auto staged = target_->stage({version});
    if (!staged.ok()) return staged.status();
    return (*staged)->commit().status();
  }
  void expect_as_it_was() const {
    EXPECT_EQ(std::memcmp(memory_.data(), base_.at("w").bytes.data(), memory_.size()), 0);
    EXPECT_TRUE(target_->state().valid);
    EXPECT_EQ(target_->state().id.version, 0U);
  }

  FoldedMemory memory_;
  Weights base_ = folded();
  PublishedRun run_{base_};
  std::unique_ptr<MappedTarget> target_;
};

TEST_F(ReadBack, AWriteThatDoesNotStickIsFoundInThePauseAndUndone) {
  for (const bool sweeps : {true, false}) {
    target_->set_proof({.always = false, .every = sweeps ? 1U : 0U});
    const Status found = commit(run_.step(1).fetched());
    ASSERT_EQ(found.code(), StatusCode::kMismatch) << found.to_string();
    EXPECT_NE(found.message().find("tensor 'w' does not hold what was written into it"),
              std::string::npos)
        << found.to_string();
    expect_as_it_was();
  }
}

TEST_F(ReadBack, OfAFullVersionToo) {
  const Status found = commit(run_.anchor(1).fetched());
  ASSERT_EQ(found.code(), StatusCode::kMismatch) << found.to_string();
  EXPECT_NE(found.message().find("tensor 'w'"), std::string::npos) << found.to_string();
  expect_as_it_was();
}

// If no version is held, everything is written, and then all of it is read back.
TEST_F(ReadBack, OfAFullVersionOntoNothing) {
  auto target = make_memory_target(run_.layout, {memory_.data()}, std::nullopt, 1);
  ASSERT_TRUE(target.ok()) << target.status().to_string();
  target_ = std::move(*target);
  const Status found = commit(run_.anchor(1).fetched());
  ASSERT_EQ(found.code(), StatusCode::kMismatch) << found.to_string();
  EXPECT_NE(found.message().find("tensor 'w'"), std::string::npos) << found.to_string();
  EXPECT_FALSE(target_->state().valid);
}

}  // namespace
}  // namespace driftless::testing
