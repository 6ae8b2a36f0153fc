// SPDX-License-Identifier: Apache-2.0
// Receivers with weights on a GPU read what they need over the peer road into the GPU's memory, and
// prove it there: over each carrier, bit for bit.
#include <gtest/gtest.h>

#include "collectives/forwarding_receive_road.h"
#include "collectives/peer/nixl_reader.h"
#include "gpu/arrival.h"
#include "kernels/device_hash.h"
#include "peer/nixl/nixl_library.h"
#include "plugin/device/device_factories.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "plugin/targets/mapped_target.h"
#include "support/peer_world.h"
#include "support/published_run.h"
#include "support/sharded_weights.h"
#include "support/weight_source.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

class PeerDevice : public ::testing::TestWithParam<PeerCarrier> {
 protected:
  void SetUp() override {
    if (GetParam() == PeerCarrier::kNixl && nixl_library().path.empty()) {
      GTEST_SKIP() << nixl_library().why_not;
    }
    world_ = std::make_unique<PeerWorld>(WorldOptions{.ring_bytes = std::uint64_t{1} << 30},
                                         GetParam(), library());
  }
  [[nodiscard]] static std::string library() {
    return GetParam() == PeerCarrier::kNixl ? nixl_library().path : std::string();
  }
  [[nodiscard]] static std::string carrier() {
    return GetParam() == PeerCarrier::kNixl  ? "nixl"
           : GetParam() == PeerCarrier::kTcp ? "tcp"
                                             : "shm";
  }
  std::unique_ptr<PeerWorld> world_;
};
INSTANTIATE_TEST_SUITE_P(Carriers, PeerDevice,
                         ::testing::Values(PeerCarrier::kShm, PeerCarrier::kTcp,
                                           PeerCarrier::kNixl),
                         [](const auto& test) {
                           return test.param == PeerCarrier::kNixl  ? "nixl"
                                  : test.param == PeerCarrier::kTcp ? "tcp"
                                                                    : "shm";
                         });

std::vector<std::byte> bytes_at(const std::byte* dev, std::uint64_t size) {
  std::vector<std::byte> out(size);
  must(cudaMemcpy(out.data(), dev, size, cudaMemcpyDeviceToHost));
  return out;
}

// Each range, as it lies in the GPU's memory after the read, is what was written, and has its hash.
void expect_ranges(ReceiveRoad& road, ArrivalMemory& memory, const PartReceipt& receipt,
                   const TestPart& part, const std::vector<ByteRange>& ranges) {
  std::vector<DeviceRange> reads;
  std::uint64_t bytes = 0;
  for (const ByteRange& range : ranges) {
    reads.push_back({range, bytes});
    bytes += range.size_bytes + 3;  // bytes between them, which nothing may write
  }
  const auto space = memory.take(bytes);
  ASSERT_OK(space);
  must(cudaMemset(space->memory.get(), 0xa5, space->allocation_bytes));
  must(cudaDeviceSynchronize());
  ASSERT_OK(road.fetch_to_device(step(1), receipt, reads, *space, soon()));
  std::vector<std::span<const std::byte>> stretches;
  for (const DeviceRange& each : reads) {
    stretches.emplace_back(space->memory.get() + each.to, each.range.size_bytes);
  }
  const auto hashes = memory.hash(stretches);
  ASSERT_OK(hashes);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const auto expected = std::span(part.bytes).subspan(ranges[i].offset, ranges[i].size_bytes);
    const std::vector<std::byte> found =
        bytes_at(space->memory.get() + reads[i].to, ranges[i].size_bytes + 3);
    ASSERT_TRUE(std::ranges::equal(std::span(found).first(expected.size()), expected))
        << ranges[i].size_bytes << " bytes at " << ranges[i].offset;
    EXPECT_EQ((*hashes)[i], xxh3_128(expected));
    for (const std::byte between : std::span(found).last(3)) {
      EXPECT_EQ(between, std::byte{0xa5}) << "after range " << i;
    }
  }
}

TEST_P(PeerDevice, RangesReachTheGpuAsTheyWereWritten) {
  const RankParts parts = some_parts(1, 1, 3'000'000, 40);
  const auto receipts = publish(*world_, step(1), parts);
  ASSERT_OK(receipts);
  const auto receiver = world_->receiver();
  ASSERT_TRUE(receiver->fetches_to_device());
  const auto memory = make_device_memory(0);
  ASSERT_OK(memory);
  ArrivalMemory& arrivals = *(*memory)->arrivals();
  const std::uint64_t size = parts[0][0].bytes.size();
  const auto expect = [&](const std::vector<ByteRange>& ranges) {
    expect_ranges(*receiver, arrivals, receipts->front(), parts[0][0], ranges);
  };
  expect({{0, size}});
  expect({{0, 1}, {size - 1, 1}, {12'345, 6'789}, {4'096, 4'096}});
  expect({{500, 1'000}, {700, 1'000}, {0, 10'000}, {500, 1'000}, {900, 0}});
  expect({});
  std::mt19937_64 random(42);
  std::vector<ByteRange> many;
  for (int i = 0; i < 3'000; ++i) {
    const std::uint64_t offset = random() % size;
    many.push_back({offset, random() % std::min<std::uint64_t>(1'000, size - offset + 1)});
  }
  expect(many);
  EXPECT_EQ(receiver->carrier(), carrier());
}

TEST_P(PeerDevice, APartLargerThanABatchReachesTheGpu) {
  const TestPart part{"rank0_large", random_part(190'000'001, 44)};
  ASSERT_OK(world_->sender(0).begin(step(1), soon()));
  ASSERT_OK(write_part(world_->sender(0), part, std::size_t{1} << 20));
  const auto receipts = world_->sender(0).flush(soon());
  ASSERT_OK(receipts);
  ASSERT_OK(world_->sender(0).seal(manifest_of(step(1)), soon()));
  const auto receiver = world_->receiver();
  const auto memory = make_device_memory(0);
  ASSERT_OK(memory);
  expect_ranges(*receiver, *(*memory)->arrivals(), receipts->front(), part,
                {{3, 100'000'000}, {100'000'003, 89'999'998}, {7, 60'000'000}});
}

TEST_P(PeerDevice, WhatIsNotThereIsRefused) {
  const auto receipts = publish(*world_, step(1), some_parts(1, 1, 1'000, 45));
  ASSERT_OK(receipts);
  const auto receiver = world_->receiver();
  const auto memory = make_device_memory(0);
  ASSERT_OK(memory);
  const auto space = (*memory)->arrivals()->take(4'096);
  ASSERT_OK(space);
  for (const ByteRange& range : std::vector<ByteRange>{
           {0, 1'001}, {1'001, 0}, {~std::uint64_t{0}, 1}, {1, ~std::uint64_t{0}}}) {
    const DeviceRange read{range, 0};
    EXPECT_EQ(
        receiver->fetch_to_device(step(1), receipts->front(), {&read, 1}, *space, soon()).code(),
        StatusCode::kCorrupt);
  }
  const DeviceRange read{{0, 10}, 0};
  EXPECT_EQ(
      receiver->fetch_to_device(step(2), receipts->front(), {&read, 1}, *space, soon()).code(),
      StatusCode::kNotFound);
}

// Counts the bytes fetched to the GPU; damages a byte there if a test asks for it.
class WatchedRoad final : public ForwardingReceiveRoad {
 public:
  explicit WatchedRoad(std::unique_ptr<ReceiveRoad> road)
      : ForwardingReceiveRoad(std::move(road)) {}
  Status fetch_to_device(const PublicationId& id, const PartReceipt& part,
                         std::span<const DeviceRange> ranges, const DeviceSpace& space,
                         const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(road_->fetch_to_device(id, part, ranges, space, deadline));
    for (const DeviceRange& each : ranges) to_device += each.range.size_bytes;
    if (!std::exchange(damage, false)) return {};
    std::byte* const at = space.memory.get() + ranges.back().to;
    const std::byte value = bytes_at(at, 1).front() ^ std::byte{4};
    must(cudaMemcpy(at, &value, 1, cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());
    return {};
  }
  bool damage = false;
  std::uint64_t to_device = 0;
};

Weights matrices(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (int layer = 0; layer < 3; ++layer) {
    weights[concat("layers.", layer, ".up")] = random_tensor(DType::kBF16, {160, 256}, random);
    weights[concat("layers.", layer, ".down")] = random_tensor(DType::kBF16, {256, 160}, random);
  }
  return quiet(std::move(weights));
}

class DeviceRollout {
 public:
  virtual ~DeviceRollout() = default;
  // Commits the next version, and returns its report.
  [[nodiscard]] Result<UpdateReport> follow() const {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, receiver->stage(Deadline::after(20s)));
    if (!staged) return error(StatusCode::kNotFound, "there is no version");
    return receiver->commit();
  }
  std::unique_ptr<WatchedRoad> road;
  std::unique_ptr<Receiver> receiver;

 protected:
  void open(PeerWorld& world, const std::string& id, WeightTarget& target) {
    road = std::make_unique<WatchedRoad>(world.receiver());
    ReceiverOptions options;
    options.id = id;
    options.fetch_deadline = 5s;
    auto opened = Receiver::open(options, *road, target, Deadline::after(5s));
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    if (opened.ok()) receiver = std::move(*opened);
  }
};

// All tensors, each contiguous on the GPU.
class WholeRollout final : public DeviceRollout {
 public:
  WholeRollout(PeerWorld& world, const Weights& base) : model_(base) {
    auto memory = make_device_memory(0);
    EXPECT_TRUE(is_ok(memory));
    auto made = make_memory_target(layout_of(base), model_.pointers(), VersionId{}, 1, *memory);
    EXPECT_TRUE(is_ok(made));
    target_ = std::move(*made);
    open(world, "whole", *target_);
  }
  [[nodiscard]] bool holds(const Weights& weights) const { return model_.holds(weights); }

 private:
  DeviceModel model_;
  std::unique_ptr<WeightTarget> target_;
};

// A rank of two, with its slices on the GPU as an engine has them.
class SlicedRollout final : public DeviceRollout {
 public:
  SlicedRollout(PeerWorld& world, const Weights& base, std::uint32_t rank)
      : held_(layout_of(base), rank) {
    std::mt19937_64 random(rank);
    const WeightLayout layout = layout_of(base);
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      const std::uint64_t rows = layout[tensor].shape[0], columns = layout[tensor].shape[1];
      if (layout[tensor].name.ends_with("up")) {
        held_.add(tensor, rows * rank / 2, rows / 2, 0, columns, random);
      } else {
        held_.add(tensor, 0, rows, columns * rank / 2, columns / 2, random);
      }
    }
    MappedOptions options;
    options.initial = VersionId{};
    options.initial_digest = digest_of(base);
    held_.load(base);
    held_.open(options);
    open(world, concat("rank", rank), held_.target());
  }
  [[nodiscard]] MappedTarget& target() { return held_.target(); }

 private:
  RankWeights held_;
};

class PeerDeviceRun : public PeerDevice {
 protected:
  void publisher(Encoding encoding, UpdateMode mode = UpdateMode::kDelta) {
    PublisherOptions options;
    options.threads = 2;
    options.buffer_bytes = 1 << 20;
    options.deadline = 20s;
    options.encoding = encoding;
    options.mode = mode;
    options.full_above_density = 2;
    for (const auto& [name, tensor] : base_) {
      options.cuts.push_back({name, name.ends_with("up") ? 0U : 1U, 2});
    }
    MemorySource source(base_);
    auto opened = Publisher::open(options, world_->group(0), world_->sender(0), nullptr, source);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    publisher_ = std::move(*opened);
  }
  void publish_step(double share) {
    current_ = quiet(changed_weights(current_, ++seed_, share, "none"));
    MemorySource source(current_);
    const auto report = publisher_->publish(source);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    wire_bytes_ = report->wire_bytes;
  }
  // The shares of both ranks add up to the trainer's tensors, and each rank holds its share bit for
  // bit.
  void expect_adds_up(const std::vector<std::unique_ptr<SlicedRollout>>& ranks) {
    std::map<std::uint32_t, Digest> sums;
    for (const auto& rank : ranks) {
      EXPECT_TRUE(is_ok(rank->target().sweep()));
      for (const TensorShare& share : rank->target().tracked().tensors) {
        sums[share.tensor] += share.digest;
      }
    }
    std::uint32_t tensor = 0;
    for (const auto& [name, bytes] : current_) {
      EXPECT_EQ(sums[tensor++], digest_of({{name, bytes}})) << name;
    }
  }

  const Weights base_ = matrices(1);
  Weights current_ = base_;
  std::uint64_t seed_ = 100, wire_bytes_ = 0;
  std::unique_ptr<Publisher> publisher_;
};
INSTANTIATE_TEST_SUITE_P(Carriers, PeerDeviceRun,
                         ::testing::Values(PeerCarrier::kShm, PeerCarrier::kTcp,
                                           PeerCarrier::kNixl),
                         [](const auto& test) {
                           return test.param == PeerCarrier::kNixl  ? "nixl"
                                  : test.param == PeerCarrier::kTcp ? "tcp"
                                                                    : "shm";
                         });

TEST_P(PeerDeviceRun, DeltasAreReadIntoTheGpuByNeedAndCommittedBitForBit) {
  for (const Encoding encoding : {Encoding::kDeltas, Encoding::kIndices}) {
    world_ = std::make_unique<PeerWorld>(WorldOptions{}, GetParam(), library());
    current_ = base_;
    publisher(encoding);
    const WholeRollout whole(*world_, base_);
    std::vector<std::unique_ptr<SlicedRollout>> ranks;
    for (const std::uint32_t rank : {0U, 1U}) {
      ranks.push_back(std::make_unique<SlicedRollout>(*world_, base_, rank));
    }
    for (const double share : {0.01, 0.1, 0.0001, 0.3}) {
      publish_step(share);
      const std::uint64_t before = whole.road->to_device;
      ASSERT_OK(whole.follow());
      EXPECT_GT(whole.road->to_device - before, share < 0.01 ? 0 : wire_bytes_ / 2) << share;
      EXPECT_TRUE(whole.holds(current_));
      for (const auto& rank : ranks) {
        const std::uint64_t mine = rank->road->to_device;
        const auto report = rank->follow();
        ASSERT_OK(report);
        EXPECT_GT(rank->road->to_device, mine);
        EXPECT_LE(report->needed_bytes, wire_bytes_ * 11 / 20 + (64 << 10));
      }
      expect_adds_up(ranks);
    }
    publisher_.reset();
  }
}

TEST_P(PeerDeviceRun, FullVersionsAreReadIntoTheGpuAndCommittedBitForBit) {
  publisher(Encoding::kDeltas, UpdateMode::kFull);
  const WholeRollout whole(*world_, base_);
  SlicedRollout rank(*world_, base_, 1);
  for (const double share : {0.5, 1.0}) {
    publish_step(share);
    const std::uint64_t before = whole.road->to_device;
    ASSERT_OK(whole.follow());
    std::uint64_t held = 0;
    for (const auto& [name, tensor] : base_) held += tensor.bytes.size();
    EXPECT_GE(whole.road->to_device - before, held);
    EXPECT_TRUE(whole.holds(current_));
    ASSERT_OK(rank.follow());  // through maps: by way of the host
    EXPECT_TRUE(is_ok(rank.target().sweep()));
  }
}

TEST_P(PeerDeviceRun, ABlockThatIsDamagedInTheGpusMemoryIsRefusedThere) {
  publisher(Encoding::kDeltas);
  const WholeRollout whole(*world_, base_);
  publish_step(0.05);
  whole.road->damage = true;
  // The fetch is repeated, because damage may pass; the weights are never touched by it.
  ASSERT_OK(whole.follow());
  EXPECT_FALSE(whole.road->damage);
  EXPECT_GT(whole.road->to_device, wire_bytes_) << "its payload was read twice";
  EXPECT_TRUE(whole.holds(current_));
}

TEST(PeerDeviceNixl, ItsMemoryIsRegisteredWithNixl) {
  NEED_NIXL();
  const auto memory = make_device_memory(0);
  ASSERT_OK(memory);
  PeerOptions options;
  options.library = nixl_library().path;
  const auto reader = peer::NixlReader::make(options);
  ASSERT_OK(reader);
  const auto first = (*memory)->arrivals()->take(1 << 20);
  const auto second = (*memory)->arrivals()->take(1 << 20);
  ASSERT_OK(first);
  ASSERT_OK(second);
  EXPECT_NE(first->allocation, second->allocation) << "the first one is in use";
  EXPECT_TRUE((*reader)->takes(*first));
  EXPECT_TRUE((*reader)->takes(*second));
}

}  // namespace
}  // namespace driftless::testing
