// SPDX-License-Identifier: Apache-2.0
// Publishers that turn bfloat16 weights into the packed codes and scales of a base in INT4 groups.
// One rank has all weights, or ranks have rows or columns in whole groups.
#include <gtest/gtest.h>

#include "plugin/checkpoint/quantization.h"
#include "support/fp8_base.h"
#include "support/loopback_job.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using namespace testing;

constexpr unsigned kGroup = 32;

Weights int4_matrices(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> near(0, 0.02F);
  Weights weights;
  weights["m.a.weight"] = random_tensor(DType::kBF16, {66, 128}, random);
  weights["m.b.weight"] = random_tensor(DType::kBF16, {2, 64}, random);
  for (auto& [name, tensor] : weights) {
    for (std::size_t i = 0; i < tensor.bytes.size() / 2; ++i) {
      bf16_weight(tensor, i) = bf16_of_f32(std::bit_cast<std::uint32_t>(near(random)));
    }
  }
  weights["m.norm.weight"] = random_tensor(DType::kBF16, {96}, random);
  return weights;
}

Weights in_int4(const Weights& weights) {
  Weights made;
  for (const auto& [name, tensor] : weights) {
    if (tensor.shape.size() != 2) {
      made[name] = tensor;
      continue;
    }
    const std::uint64_t rows = tensor.shape[0], columns = tensor.shape[1];
    TestTensor packed{DType::kI32, {rows, columns / 8}, {}};
    packed.bytes.resize(rows * columns / 2);
    TestTensor scales{DType::kBF16, {rows, columns / kGroup}, {}};
    scales.bytes.resize(rows * columns / kGroup * 2);
    EXPECT_TRUE(quantize_int4(all_quantizers().front(), kGroup, tensor.bytes.data(), rows, columns,
                              1, packed.bytes.data(), scales.bytes.data())
                    .ok());
    const TensorSpec spec = TensorSpec::make(name, DType::kBF16, tensor.shape).value();
    made[name + "_packed"] = packed;
    made[name + "_scale"] = scales;
    made[name + "_shape"] = {DType::kI32, {2}, int4_shape_bytes(spec, DType::kI32)};
  }
  return made;
}

class Int4Publisher : public ::testing::Test {
 protected:
  Int4Publisher() {
    options_.base_checkpoint = dir_.file("base");
    options_.full_above_density = 0.9;
    write_checkpoint(options_.base_checkpoint, in_int4(weights_));
    EXPECT_TRUE(write_text(posix_file_system(), options_.base_checkpoint + "/config.json",
                           R"({"quantization_config": {"quant_method": "compressed-tensors",
                               "config_groups": {"group_0": {"weights": {"num_bits": 4,
                               "type": "int", "strategy": "group", "group_size": 32}}}}})")
                    .ok());
  }
  ~Int4Publisher() override { Trainer::offer_as({}); }

  // Divides the matrices along one dimension between ranks.
  static void cut(unsigned dimension, unsigned ranks) {
    Trainer::offer_as([dimension, ranks](const Weights& weights, unsigned rank) {
      MemorySource source({}, 2);
      for (const auto& [name, tensor] : weights) {
        const bool whole = tensor.shape.size() != 2 || ranks == 1;
        if (whole && rank == 0) source.add(name, tensor);
        if (whole) continue;
        source.add(name, tensor, part_of({{0, 0}, tensor.shape}, dimension, rank, ranks));
      }
      return source;
    });
  }

  TempDir dir_{TempDir::Where::kMemory};
  PublisherOptions options_ = quick_options();
  Weights weights_ = int4_matrices(3);
};

// The dimension that is divided, and the number of ranks.
class Int4Cuts : public Int4Publisher,
                 public ::testing::WithParamInterface<std::pair<unsigned, unsigned>> {};

INSTANTIATE_TEST_SUITE_P(Cuts, Int4Cuts,
                         ::testing::Values(std::pair(0U, 1U), std::pair(0U, 2U),
                                           std::pair(1U, 2U)));

TEST_P(Int4Cuts, PublishesWhatOneRankWould) {
  const auto [dimension, ranks] = GetParam();
  cut(dimension, ranks);
  LoopbackHub hub({}, ranks);
  Trainer trainer(hub, ranks, options_, weights_);
  expect_ok(trainer.opened());
  Rollout rollout(hub, in_int4(weights_));
  std::mt19937_64 random(9);
  for (int step = 0; step < 4; ++step) {
    for (auto& [name, tensor] : weights_) {
      const std::size_t count = tensor.bytes.size() / 2;
      for (std::size_t i = 0; i < count; ++i) {
        if (random() % 20 == 0) bf16_weight(tensor, i) ^= 0x0041;
      }
    }
    expect_ok(trainer.publish(weights_));
    ASSERT_EQ(rollout.follow().to_string(), "ok");
    EXPECT_TRUE(rollout.holds(in_int4(weights_))) << step;
    EXPECT_EQ(rollout.state().digest, trainer.rank(0).digest());
  }
  expect_ok(trainer.publish(weights_));
  EXPECT_EQ(trainer.report().changed_units, 0U);
}

TEST_F(Int4Publisher, GroupsThatRanksCutAreRefusedByName) {
  cut(1, 3);  // of 128 and 64 columns
  LoopbackHub hub({}, 3);
  Trainer trainer(hub, 3, options_, weights_);
  for (const Status& status : trainer.opened()) {
    EXPECT_NE(status.message().find("cuts groups of 32"), std::string::npos) << status.to_string();
  }
}

TEST_F(Int4Publisher, WithoutASnapshotIsRefusedByName) {
  cut(0, 1);
  options_.keep_snapshot = false;
  LoopbackHub hub({}, 1);
  Trainer trainer(hub, 1, options_, weights_);
  for (const Status& status : trainer.opened()) {
    EXPECT_NE(status.message().find("INT4"), std::string::npos) << status.to_string();
    EXPECT_NE(status.message().find("snapshot: host"), std::string::npos) << status.to_string();
  }
}

}  // namespace
}  // namespace driftless
