// SPDX-License-Identifier: Apache-2.0
// Memory that is held from version to version grows without stopping the GPU.
#include "plugin/device/device_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gpu/device.h"

namespace driftless::testing {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A stream that is busy until release(), or for a while where somebody waits for the whole GPU.
class Busy {
 public:
  Busy() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    must(cudaLaunchHostFunc(stream_, &Busy::work, this));
    while (!begun_) std::this_thread::yield();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() {
    release();
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  void release() { released_ = true; }
  [[nodiscard]] bool at_work() const { return !ended_; }

 private:
  static void work(void* self) {
    auto& busy = *static_cast<Busy*>(self);
    busy.begun_ = true;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!busy.released_ && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    busy.ended_ = true;
  }
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> begun_ = false, released_ = false, ended_ = false;
};

std::vector<std::byte> content(std::uint64_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251);
  return made;
}

// There and back, on a stream of its own.
std::vector<std::byte> through(const DeviceBuffer& buffer, const std::vector<std::byte>& bytes) {
  const Result<DeviceStream> made = DeviceStream::make();
  if (!made.ok()) return {};
  const DeviceStream& stream = *made;
  std::vector<std::byte> back(bytes.size());
  EXPECT_TRUE(stream.copy(buffer.data(), bytes.data(), bytes.size()).ok());
  EXPECT_TRUE(stream.copy(back.data(), buffer.data(), back.size()).ok());
  EXPECT_TRUE(stream.wait().ok());
  return back;
}

class DeviceBufferTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(check_device(0).ok()); }
};

TEST_F(DeviceBufferTest, DeviceMemoryGrowsWhileOthersAreAtWork) {
  DeviceBuffer buffer;
  ASSERT_TRUE(buffer.reserve(kMiB, MemoryKind::kDevice).ok());
  const std::vector<std::byte> first = content(kMiB);
  ASSERT_EQ(through(buffer, first), first);
  std::byte* const before = buffer.data();
  Busy busy;
  for (const std::uint64_t bytes : {5 * kMiB + 1, 64 * kMiB, 3 * kMiB}) {
    ASSERT_TRUE(buffer.reserve(bytes, MemoryKind::kDevice).ok()) << bytes;
    EXPECT_GE(buffer.size(), bytes);
    EXPECT_TRUE(busy.at_work()) << "growing to " << bytes << " bytes waited for the GPU";
  }
  EXPECT_LE(buffer.size(), 66 * kMiB) << "it takes what is needed";
  EXPECT_EQ(buffer.data(), before);
  busy.release();
  const std::vector<std::byte> all = content(64 * kMiB);
  EXPECT_EQ(through(buffer, all), all);
}

TEST_F(DeviceBufferTest, PinnedMemoryGrowsWhileOthersAreAtWork) {
  DeviceBuffer buffer;
  ASSERT_TRUE(buffer.reserve(kMiB, MemoryKind::kHost).ok());
  const Busy busy;
  ASSERT_TRUE(buffer.reserve(2 * kMiB, MemoryKind::kHost).ok());
  EXPECT_TRUE(busy.at_work()) << "growing waited for the GPU";
  std::fill_n(buffer.data(), 2 * kMiB, std::byte{7});
}

TEST_F(DeviceBufferTest, WhatIsThereStaysWhereMemoryIsLacking) {
  DeviceBuffer buffer;
  ASSERT_TRUE(buffer.reserve(kMiB, MemoryKind::kDevice).ok());
  const Status more = buffer.reserve(std::uint64_t{1} << 50, MemoryKind::kDevice);
  EXPECT_EQ(more.code(), StatusCode::kNoSpace) << more.message();
  std::size_t left = 0, all = 0;
  must(cudaMemGetInfo(&left, &all));
  const Status status = buffer.reserve(left + 4 * kMiB, MemoryKind::kDevice);
  EXPECT_EQ(status.code(), StatusCode::kNoSpace) << status.message();
  const std::vector<std::byte> bytes = content(kMiB);
  EXPECT_EQ(through(buffer, bytes), bytes);
}

TEST_F(DeviceBufferTest, GivesItsMemoryBack) {
  const auto left = [] {
    std::size_t bytes = 0, all = 0;
    must(cudaMemGetInfo(&bytes, &all));
    return bytes;
  };
  DeviceBuffer first;
  ASSERT_TRUE(first.reserve(kMiB, MemoryKind::kDevice).ok());
  const std::uint64_t before = left();
  {
    DeviceBuffer buffer;
    ASSERT_TRUE(buffer.reserve(256 * kMiB, MemoryKind::kDevice).ok());
    ASSERT_TRUE(buffer.reserve(512 * kMiB, MemoryKind::kDevice).ok());
    EXPECT_LE(left(), before - 512 * kMiB);
    const DeviceBuffer moved = std::move(buffer);
    EXPECT_NE(moved.data(), nullptr);
  }
  EXPECT_GE(left() + 8 * kMiB, before);
}

}  // namespace
}  // namespace driftless::testing
