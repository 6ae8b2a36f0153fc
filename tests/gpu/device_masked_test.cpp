// SPDX-License-Identifier: Apache-2.0
// Masked overwrites on the GPU do what the host's do, to the bit, and go back.
#include "plugin/device/device_factories.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "gpu/device.h"
#include "plugin/targets/masked_write.h"

namespace driftless::testing {
namespace {

// Changes of a tensor in pieces, with the memory that they point to.
struct Changes {
  std::uint64_t units;
  unsigned width;
  std::deque<std::vector<std::uint32_t>> offsets;
  std::deque<std::vector<std::byte>> values;
  std::vector<DeltaPiece> pieces;

  // About every third unit, in pieces of up to `most` changes.
  Changes(std::uint64_t all, unsigned unit_bytes, std::uint32_t most, unsigned seed)
      : units(all), width(unit_bytes) {
    std::mt19937 random(seed);
    std::uint64_t at = random() % 3;
    while (at < units) {
      const std::uint64_t origin = at - std::min<std::uint64_t>(at, random() % 2);
      auto& picked = offsets.emplace_back();
      for (; at < units && picked.size() < most; at += 1 + random() % 5) {
        picked.push_back(static_cast<std::uint32_t>(at - origin));
      }
      auto& bytes = values.emplace_back(picked.size() * width);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 128);
      DeltaPiece piece;
      piece.count = static_cast<std::uint32_t>(picked.size());
      piece.origin = origin;
      piece.offsets = picked.data();
      piece.values = bytes.data();
      pieces.push_back(piece);
    }
  }
  [[nodiscard]] MaskedDevice::Tensor tensor() const { return {units, width, pieces}; }
  // All of it: the sentinel, but for the changes.
  [[nodiscard]] std::vector<std::byte> dense(std::uint64_t sentinel) const {
    std::vector<std::byte> all(units * width);
    for (std::uint64_t i = 0; i < units; ++i) std::memcpy(&all[i * width], &sentinel, width);
    for (const DeltaPiece& piece : pieces) {
      for (std::uint32_t k = 0; k < piece.count; ++k) {
        std::memcpy(&all[(piece.origin + piece.offsets[k]) * width],
                    piece.values + std::size_t{k} * width, width);
      }
    }
    return all;
  }
};

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  return bytes;
}

std::vector<std::byte> fetch(const std::byte* from, std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  must(cudaMemcpy(out.data(), from, bytes, cudaMemcpyDeviceToHost));
  return out;
}

class DeviceMaskedTest : public ::testing::Test {
 protected:
  DeviceMaskedTest() {
    auto made = make_masked_device(0);
    must(made.status());
    masked_ = std::move(*made);
  }

  std::unique_ptr<MaskedDevice> masked_;
};

TEST_F(DeviceMaskedTest, FullShapeTensorsHoldTheSentinelAndTheChanges) {
  const Changes bytes(70001, 1, 16384, 1), halves(50003, 2, 100, 2), words(777, 4, 16384, 3),
      longs(5, 8, 2, 4);
  const std::vector<MaskedDevice::Tensor> tensors{bytes.tensor(), halves.tensor(), words.tensor(),
                                                  longs.tensor()};
  const std::uint64_t sentinel = 0xf1f2f3f4f5f6f7f8U;
  const std::vector<MaskedDevice::Dense> all{{0, 0, sentinel},
                                             {1, 70144, sentinel},
                                             {2, 70144 + 100096, sentinel},
                                             {3, 70144 + 100096 + 3328, sentinel}};
  must(masked_->stage(tensors, 180000, std::span(all).first(1)));
  const std::byte* const dense = masked_->dense().get();
  EXPECT_EQ(fetch(dense, 70001), bytes.dense(sentinel));
  must(masked_->fill(all, nullptr));
  EXPECT_EQ(fetch(dense, 70001), bytes.dense(sentinel));
  EXPECT_EQ(fetch(dense + all[1].offset, 100006), halves.dense(sentinel));
  EXPECT_EQ(fetch(dense + all[2].offset, 3108), words.dense(sentinel));
  EXPECT_EQ(fetch(dense + all[3].offset, 40), longs.dense(sentinel));
}

// Rows, columns, a transpose, a conversion: on the host and on the GPU, then back.
TEST_F(DeviceMaskedTest, CopiesWriteWhatTheHostsDo) {
  constexpr std::uint64_t kRows = 300, kColumns = 210;
  const Changes changes(kRows * kColumns, 2, 1000, 5);
  const std::vector<MaskedDevice::Tensor> tensors{changes.tensor()};
  must(masked_->stage(tensors, 0, {}));
  EXPECT_EQ(masked_->dense(), nullptr);
  struct Copy {
    StridedView source, target;
    ValueCast cast;
    unsigned width;
  };
  const std::vector<Copy> copies{
      {{0, {kRows * kColumns}, {1}}, {64, {kRows * kColumns}, {1}}, ValueCast::kNone, 2},
      {{70 * kColumns, {100, kColumns}, {kColumns, 1}},
       {0, {100, kColumns}, {kColumns, 1}},
       ValueCast::kNone,
       2},
      {{13, {kRows, 100}, {kColumns, 1}}, {9, {kRows, 100}, {128, 1}}, ValueCast::kNone, 2},
      {{0, {kColumns, kRows}, {1, kColumns}},
       {0, {kColumns, kRows}, {kRows, 1}},
       ValueCast::kBF16ToF32,
       4},
      {{0, {1}, {1}}, {0, {1}, {1}}, ValueCast::kNone, 2},
  };
  constexpr std::uint64_t kTargetUnits = 80000;
  for (const Copy& copy : copies) {
    const auto map = StridedMap::make(copy.source, changes.units, copy.target, kTargetUnits);
    ASSERT_TRUE(map.ok()) << map.status().to_string();
    const std::vector<std::byte> before = some_bytes(kTargetUnits * copy.width);
    std::vector<std::byte> host = before;
    auto expected =
        MaskedWrite::make({0, host.data(), copy.width, *map, copy.cast, {}}, changes.pieces, 1);
    ASSERT_TRUE(expected.ok());
    const DeviceBytes target(before);
    const auto written =
        masked_->overwrite(0, {0, target.data(), copy.width, *map, copy.cast, {}}, nullptr);
    ASSERT_TRUE(written.ok()) << written.status().to_string();
    EXPECT_EQ(target.copy(), host);
    EXPECT_TRUE(target.intact());
    must(masked_->take_back(*written, nullptr));
    EXPECT_EQ(target.copy(), before);
  }
}

TEST_F(DeviceMaskedTest, FullShapeTensorsPastTheEndAreRefused) {
  const Changes changes(900, 2, 100, 8);
  const std::vector<MaskedDevice::Tensor> tensors{changes.tensor()};
  must(masked_->stage(tensors, 2048, {}));
  for (const MaskedDevice::Dense& dense : std::vector<MaskedDevice::Dense>{
           {0, 262144, 0}, {0, 2, 0}, {1, 0, 0}, {0, ~std::uint64_t{255}, 0}}) {
    EXPECT_EQ(masked_->fill(std::span(&dense, 1), nullptr).code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(DeviceMaskedTest, CopiesThatMeetGoBackInTurn) {
  const Changes one(5000, 4, 700, 6), two(5000, 4, 900, 7);
  const std::vector<MaskedDevice::Tensor> tensors{one.tensor(), two.tensor()};
  must(masked_->stage(tensors, 256, {}));
  const auto map = StridedMap::make({0, {5000}, {1}}, 5000, {0, {5000}, {1}}, 5000);
  ASSERT_TRUE(map.ok());
  const std::vector<std::byte> before = some_bytes(20000);
  const DeviceBytes target(before);
  const auto first =
      masked_->overwrite(0, {0, target.data(), 4, *map, ValueCast::kNone, {}}, nullptr);
  ASSERT_TRUE(first.ok());
  const std::vector<std::byte> between = target.copy();
  const auto second =
      masked_->overwrite(1, {0, target.data(), 4, *map, ValueCast::kNone, {}}, nullptr);
  ASSERT_TRUE(second.ok());
  EXPECT_NE(target.copy(), between);
  must(masked_->take_back(*second, nullptr));
  EXPECT_EQ(target.copy(), between);
  must(masked_->take_back(*first, nullptr));
  EXPECT_EQ(target.copy(), before);
}

TEST_F(DeviceMaskedTest, TheLastVersionsWritesAreForgotten) {
  const Changes changes(900, 2, 100, 8);
  const std::vector<MaskedDevice::Tensor> tensors{changes.tensor()};
  const auto map = StridedMap::make({0, {900}, {1}}, 900, {0, {900}, {1}}, 900);
  ASSERT_TRUE(map.ok());
  const DeviceBytes target(some_bytes(1800));
  must(masked_->stage(tensors, 256, {}));
  const auto old =
      masked_->overwrite(0, {0, target.data(), 2, *map, ValueCast::kNone, {}}, nullptr);
  ASSERT_TRUE(old.ok());
  must(cudaDeviceSynchronize());
  must(masked_->stage(tensors, 256, {}));
  EXPECT_EQ(masked_->take_back(*old, nullptr).code(), StatusCode::kInvalidArgument);
  const auto fresh =
      masked_->overwrite(0, {0, target.data(), 2, *map, ValueCast::kNone, {}}, nullptr);
  ASSERT_TRUE(fresh.ok());
  EXPECT_NE(*fresh, *old);
  must(masked_->take_back(*fresh, nullptr));
}

// Many copies of one tensor need more room than was foreseen.
TEST_F(DeviceMaskedTest, MoreCopiesThanForeseen) {
  const Changes changes(200000, 2, 16384, 9);
  const std::vector<MaskedDevice::Tensor> tensors{changes.tensor()};
  must(masked_->stage(tensors, 256, {}));
  const auto map = StridedMap::make({0, {200000}, {1}}, 200000, {0, {200000}, {1}}, 200000);
  ASSERT_TRUE(map.ok());
  const std::vector<std::byte> before = some_bytes(400000);
  std::deque<DeviceBytes> targets;
  std::vector<std::size_t> writes;
  for (int i = 0; i < 20; ++i) {
    const DeviceBytes& target = targets.emplace_back(before);
    const auto written =
        masked_->overwrite(0, {0, target.data(), 2, *map, ValueCast::kNone, {}}, nullptr);
    ASSERT_TRUE(written.ok()) << written.status().to_string();
    writes.push_back(*written);
  }
  for (int i = 1; i < 20; ++i) EXPECT_EQ(targets[i].copy(), targets[0].copy());
  for (int i = 19; i >= 0; --i) must(masked_->take_back(writes[i], nullptr));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(targets[i].copy(), before);
}

// The context that the calling thread has, as the driver says.
void* current_context() {
  static const auto get =
      reinterpret_cast<int (*)(void**)>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxGetCurrent"));
  void* context = nullptr;
  EXPECT_EQ(get(&context), 0);
  return context;
}

TEST_F(DeviceMaskedTest, AThreadKeepsTheGpuThatItHas) {
  const Changes changes(900, 2, 100, 8);
  const std::vector<MaskedDevice::Tensor> tensors{changes.tensor()};
  const DeviceBytes target(some_bytes(1800));
  const auto map = StridedMap::make({0, {900}, {1}}, 900, {0, {900}, {1}}, 900);
  ASSERT_TRUE(map.ok());
  const auto work = [&] {
    must(masked_->stage(tensors, 256, {}));
    must(
        masked_->overwrite(0, {0, target.data(), 2, *map, ValueCast::kNone, {}}, nullptr).status());
    must(make_device_memory(0).status());
  };
  std::thread([&work] {
    ASSERT_EQ(current_context(), nullptr);
    for (int i = 0; i < 2; ++i) {
      work();
      EXPECT_EQ(current_context(), nullptr) << "none, and it is left without one";
    }
    must(cudaSetDevice(0));
    must(cudaDeviceSynchronize());
    void* const context = current_context();
    EXPECT_NE(context, nullptr);
    work();
    EXPECT_EQ(current_context(), context);
  }).join();
}

}  // namespace
}  // namespace driftless::testing
