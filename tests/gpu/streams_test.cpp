// SPDX-License-Identifier: Apache-2.0
// Batches on the device give the same streams as the bucket builder on the host, and patches accept
// them.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>

#include "core/layout.h"
#include "formats/bucket.h"
#include "gpu/device.h"
#include "kernels/tensor_ops.h"
#include "support/kernels_data.h"

namespace driftless {
namespace {

using namespace driftless::testing;
using cuda::PositionCoding;

constexpr DType kDTypes[] = {DType::kU8, DType::kBF16, DType::kF32, DType::kF64};

// Tensors on both sides, host and device.
struct Model {
  unsigned width = 2;
  std::vector<std::vector<std::byte>> before, after;
  std::vector<DeviceBytes> before_dev, after_dev;
  std::vector<std::uint64_t> units;

  void add(std::uint64_t count, Pattern pattern, std::uint64_t old_shift, std::uint64_t new_shift) {
    Random random(units.size() * 7 + count);
    before.emplace_back(count * width);
    fill_units(random, width, before.back().data(), count);
    after.push_back(before.back());
    change_units(random, pattern, width, after.back().data(), count);
    before_dev.emplace_back(std::span<const std::byte>(before.back()), old_shift * width);
    after_dev.emplace_back(std::span<const std::byte>(after.back()), new_shift * width);
    units.push_back(count);
  }
  [[nodiscard]] std::vector<cuda::DiffBatch::Tensor> tensors() const {
    std::vector<cuda::DiffBatch::Tensor> out;
    for (std::size_t i = 0; i < units.size(); ++i) {
      out.push_back({before_dev[i].data(), after_dev[i].data()});
    }
    return out;
  }
  [[nodiscard]] std::uint64_t total() const {
    return std::accumulate(units.begin(), units.end(), std::uint64_t{0});
  }
};

Model mixed_model(unsigned width) {
  Model model;
  model.width = width;
  const std::uint64_t sizes[] = {0,    1,     3,      100,  5000, 70001, 2,
                                 8191, 16384, 300000, 4096, 0,    32769, 65536};
  std::uint64_t turn = 0;
  for (const Pattern pattern : kAllPatterns) {
    for (const std::uint64_t units : sizes) {
      ++turn;
      model.add(units, pattern, turn % 3 == 0 ? turn % 5 : 0, turn % 4 == 0 ? turn % 7 : 0);
    }
  }
  return model;
}

// What the host makes of the same tensors.
struct Expected {
  WeightLayout layout;
  std::optional<BucketBuilder> bucket;
};
void encode_on_host(const Model& model, PositionCoding coding, Expected& expected) {
  std::vector<TensorSpec> specs;
  const DType dtype = kDTypes[model.width == 1   ? 0
                              : model.width == 2 ? 1
                              : model.width == 4 ? 2
                                                 : 3];
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    char name[32];
    std::snprintf(name, sizeof(name), "t%06zu", i);
    auto spec = TensorSpec::make(name, dtype, {model.units[i]});
    must(spec.status());
    specs.push_back(std::move(*spec));
  }
  auto layout = WeightLayout::make(std::move(specs));
  must(layout.status());
  expected.layout = std::move(*layout);
  expected.bucket.emplace(expected.layout,
                          coding == PositionCoding::kGaps ? Encoding::kDeltas : Encoding::kIndices);
  std::vector<TensorPair> pairs;
  for (std::uint32_t i = 0; i < model.units.size(); ++i) {
    pairs.push_back(
        {i, model.width, model.units[i], model.before[i].data(), model.after[i].data()});
  }
  must(diff_tensors(host_kernels(), pairs, {}, nullptr,
                    [&](const DiffPiece& piece) { return expected.bucket->add(piece.delta); }));
}

struct Found {
  std::vector<cuda::StreamEntry> entries;
  DeviceBytes positions, values;
  std::uint64_t changed = 0, position_bytes = 0;
};
Found diff_on_device(const Model& model, PositionCoding coding, std::uint64_t max_changed) {
  const WorkMemory work(cuda::DiffBatch::workspace_size(model.units, model.width, max_changed));
  auto batch = cuda::DiffBatch::make(model.units, model.width, max_changed, work.get(), nullptr);
  must(batch.status());
  Found found{
      {}, DeviceBytes(batch->max_position_bytes(false)), DeviceBytes(batch->max_value_bytes())};
  for (int again = 0; again < 2; ++again) {  // a batch may be run again
    must(batch->run(model.tensors(), coding, found.positions.data(), found.values.data(), nullptr));
    must(cudaDeviceSynchronize());
  }
  const auto results = batch->results();
  found.entries.assign(results.entries.begin(), results.entries.end());
  found.changed = results.changed;
  found.position_bytes = results.position_bytes;
  EXPECT_TRUE(found.positions.intact() && found.values.intact() && work.intact());
  return found;
}

void expect_same_streams(const Found& found, const Expected& expected) {
  const BucketView bucket = expected.bucket->view();
  ASSERT_EQ(found.position_bytes, bucket.positions.size());
  const std::vector<std::byte> positions = found.positions.copy(bucket.positions.size());
  const std::vector<std::byte> values = found.values.copy(bucket.values.size());
  EXPECT_TRUE(std::ranges::equal(positions, bucket.positions));
  EXPECT_TRUE(std::ranges::equal(values, bucket.values));
  std::size_t next = 0;
  for (std::uint32_t i = 0; i < found.entries.size(); ++i) {
    const cuda::StreamEntry& entry = found.entries[i];
    if (entry.count == 0) continue;
    ASSERT_LT(next, bucket.entries.size());
    const BucketEntry& like = bucket.entries[next++];
    EXPECT_EQ(like.tensor, i);
    EXPECT_EQ(like.count(), entry.count);
    EXPECT_EQ(like.value_begin, entry.value_begin);
    EXPECT_EQ(like.position_begin, entry.position_begin);
    EXPECT_EQ(like.position_bytes, entry.position_bytes);
  }
  EXPECT_EQ(next, bucket.entries.size());
}

class Streams : public ::testing::TestWithParam<std::tuple<unsigned, PositionCoding>> {
 protected:
  unsigned width() const { return std::get<0>(GetParam()); }
  PositionCoding coding() const { return std::get<1>(GetParam()); }
};

TEST_P(Streams, AreThoseOfTheBucketBuilder) {
  const Model model = mixed_model(width());
  Expected expected;
  encode_on_host(model, coding(), expected);
  expect_same_streams(diff_on_device(model, coding(), model.total()), expected);
}

TEST_P(Streams, TooManyChangesAreCountedAndNothingIsWritten) {
  const Model model = mixed_model(width());
  const Found all = diff_on_device(model, coding(), model.total());
  const Found cut = diff_on_device(model, coding(), all.changed - 1);
  EXPECT_EQ(cut.changed, all.changed);
}

TEST_P(Streams, PatchedBackAndForth) {
  const Model model = mixed_model(width());
  const Found found = diff_on_device(model, coding(), model.total());
  std::vector<cuda::Patch::Tensor> tensors;
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    const DigestTensorKey key = digest_tensor_key("tensor " + std::to_string(i));
    tensors.push_back({model.before_dev[i].data(), model.units[i], found.entries[i], key});
  }
  const WorkMemory work(cuda::Patch::workspace_size(tensors));
  auto patch =
      cuda::Patch::make(tensors, width(), coding(), found.positions.data(), work.get(), nullptr);
  must(patch.status());
  const DeviceBytes old_values(found.values.size());
  const DeviceBytes each_sums(tensors.size() * cuda::kDigestSums * 8);
  must(patch->gather(old_values.data(), nullptr));
  must(patch->digest_changes(old_values.data(), found.values.data(),
                             reinterpret_cast<std::uint64_t*>(each_sums.data()), nullptr));
  must(patch->scatter(found.values.data(), nullptr));
  must(cudaDeviceSynchronize());
  must(patch->check());
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    EXPECT_EQ(model.before_dev[i].copy(), model.after[i]) << "tensor " << i;
    EXPECT_TRUE(model.before_dev[i].intact());
  }
  std::uint64_t host[cuda::kDigestSums];
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto at = each_sums.data() + i * sizeof(host);
    must(cudaMemcpy(host, at, sizeof(host), cudaMemcpyDeviceToHost));
    const auto digest = [&](const std::vector<std::byte>& bytes) {
      return host_kernels().digest(tensors[i].key, 0, bytes);
    };
    EXPECT_EQ(digest(model.before[i]) + cuda::digest_from_sums(host), digest(model.after[i]))
        << "tensor " << i;
  }
  must(patch->scatter(old_values.data(), nullptr));
  must(cudaDeviceSynchronize());
  for (std::size_t i = 0; i < model.units.size(); ++i) {
    EXPECT_EQ(model.before_dev[i].copy(), model.before[i]) << "tensor " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Streams,
                         ::testing::Combine(::testing::Values(1U, 2U, 4U, 8U),
                                            ::testing::Values(PositionCoding::kIndices,
                                                              PositionCoding::kGaps)));

TEST(StreamsOfGaps, WidenOnlyTheTensorThatNeedsIt) {
  Model model;
  model.width = 2;
  model.add(200000, Pattern::kLast, 0, 0);
  model.add(60000, Pattern::kLast, 0, 0);
  model.add(65537, Pattern::kLast, 0, 0);
  model.add(500000, Pattern::kOnePercent, 0, 0);
  Expected expected;
  encode_on_host(model, PositionCoding::kGaps, expected);
  const Found found = diff_on_device(model, PositionCoding::kGaps, 10000);
  expect_same_streams(found, expected);
  EXPECT_EQ(found.entries[0].position_bytes, 4U);
  EXPECT_EQ(found.entries[1].position_bytes, 2U);
}

TEST(StreamsOfStretches, CountFromTheTensorsStart) {
  for (const PositionCoding coding : {PositionCoding::kIndices, PositionCoding::kGaps}) {
    Model whole;
    whole.add(200000, Pattern::kOnePercent, 0, 0);
    Expected expected;
    encode_on_host(whole, coding, expected);
    constexpr std::uint64_t kCut = 70016;
    const std::uint64_t units[] = {200000 - kCut};
    const WorkMemory work(cuda::DiffBatch::workspace_size(units, 2, 10000));
    auto batch = cuda::DiffBatch::make(units, 2, 10000, work.get(), nullptr);
    must(batch.status());
    const DeviceBytes positions(batch->max_position_bytes(false)), values(20000);
    const cuda::DiffBatch::Tensor tensor{whole.before_dev[0].data() + kCut * 2,
                                         whole.after_dev[0].data() + kCut * 2, kCut, false};
    must(batch->run(std::span(&tensor, 1), coding, positions.data(), values.data(), nullptr));
    must(cudaDeviceSynchronize());
    // A patch of the stretch alone makes the end of the tensor what it should be.
    const cuda::Patch::Tensor patched{
        whole.before_dev[0].data(), 200000, batch->results().entries[0], {}};
    const WorkMemory more(cuda::Patch::workspace_size(std::span(&patched, 1)));
    auto patch =
        cuda::Patch::make(std::span(&patched, 1), 2, coding, positions.data(), more.get(), nullptr);
    must(patch.status());
    must(patch->scatter(values.data(), nullptr));
    must(cudaDeviceSynchronize());
    must(patch->check());
    const std::vector<std::byte> now = whole.before_dev[0].copy();
    EXPECT_TRUE(std::equal(now.begin() + kCut * 2, now.end(), whole.after[0].begin() + kCut * 2));
    EXPECT_TRUE(std::equal(now.begin(), now.begin() + kCut * 2, whole.before[0].begin()));
  }
}

TEST(Patch, RefusesPositionsThatLeaveTheTensorOrDoNotAscend) {
  const DeviceBytes data(1000);
  const auto refused = [&](std::vector<std::uint32_t> positions, PositionCoding coding) {
    const DeviceBytes stream(std::as_bytes(std::span(positions)));
    const DeviceBytes values(positions.size());
    const cuda::Patch::Tensor tensor{data.data(), 1000, {positions.size(), 0, 0, 4, 0}, {}};
    const WorkMemory work(cuda::Patch::workspace_size(std::span(&tensor, 1)));
    auto patch =
        cuda::Patch::make(std::span(&tensor, 1), 1, coding, stream.data(), work.get(), nullptr);
    must(patch.status());
    must(patch->scatter(values.data(), nullptr));
    must(cudaDeviceSynchronize());
    EXPECT_TRUE(data.intact());
    return patch->check().code() == StatusCode::kCorrupt;
  };
  EXPECT_FALSE(refused({0, 5, 999}, PositionCoding::kIndices));
  EXPECT_TRUE(refused({0, 5, 1000}, PositionCoding::kIndices));
  EXPECT_TRUE(refused({0, 5, 5}, PositionCoding::kIndices));
  EXPECT_TRUE(refused({7, 5}, PositionCoding::kIndices));
  EXPECT_TRUE(refused({0xffffffffU}, PositionCoding::kIndices));
  EXPECT_FALSE(refused({0, 5, 992}, PositionCoding::kGaps));
  EXPECT_TRUE(refused({0, 5, 993}, PositionCoding::kGaps));
  EXPECT_TRUE(refused({0xffffffffU, 0xffffffffU, 0xffffffffU}, PositionCoding::kGaps));
}

TEST(HugeTensor, MoreThanFourBillionUnits) {
  constexpr std::uint64_t kUnits = (std::uint64_t{1} << 32) + 12345;
  const std::vector<std::uint64_t> positions = {0, (std::uint64_t{1} << 31) + 1,
                                                (std::uint64_t{1} << 32) - 1,
                                                std::uint64_t{1} << 32, kUnits - 1};
  const DeviceBytes old_bytes(kUnits), new_bytes(kUnits);
  std::byte* const before = old_bytes.data();
  std::byte* const after = new_bytes.data();
  must(cudaMemset(before, 0, kUnits));
  must(cudaMemset(after, 0, kUnits));
  for (const std::uint64_t at : positions) must(cudaMemset(after + at, 0x81, 1));
  for (const PositionCoding coding : {PositionCoding::kIndices, PositionCoding::kGaps}) {
    const std::uint64_t units[] = {kUnits};
    const WorkMemory work(cuda::DiffBatch::workspace_size(units, 1, 100));
    auto batch = cuda::DiffBatch::make(units, 1, 100, work.get(), nullptr);
    must(batch.status());
    const DeviceBytes streams(batch->max_position_bytes(true)), values(batch->max_value_bytes());
    const cuda::DiffBatch::Tensor tensor{before, after, 0, true};
    must(batch->run(std::span(&tensor, 1), coding, streams.data(), values.data(), nullptr));
    must(cudaDeviceSynchronize());
    ASSERT_EQ(batch->results().changed, positions.size());
    const cuda::StreamEntry entry = batch->results().entries[0];
    EXPECT_EQ(entry.position_bytes, coding == PositionCoding::kIndices ? 8U : 4U);
    const cuda::Patch::Tensor patched{before, kUnits, entry, digest_tensor_key("experts")};
    const WorkMemory more(cuda::Patch::workspace_size(std::span(&patched, 1)));
    auto patch =
        cuda::Patch::make(std::span(&patched, 1), 1, coding, streams.data(), more.get(), nullptr);
    must(patch.status());
    must(patch->scatter(values.data(), nullptr));
    must(batch->run(std::span(&tensor, 1), coding, streams.data(), values.data(), nullptr));
    must(cudaDeviceSynchronize());
    must(patch->check());
    EXPECT_EQ(batch->results().changed, 0U);
    must(cudaMemset(before, 0, kUnits));
  }
}

}  // namespace
}  // namespace driftless
