// SPDX-License-Identifier: Apache-2.0
// What publishers refuse for a base in INT4 groups; what they publish is in
// publisher_quantized_test.cpp.
#include <gtest/gtest.h>

#include "support/fp8_base.h"
#include "support/loopback_job.h"
#include "support/temp_dir.h"

namespace driftless {
namespace {

using namespace testing;

TEST(Int4Publisher, GroupsThatRanksCutAreRefusedByName) {
  constexpr BaseKind kKind{QuantizeRule::kLinear, 32};
  constexpr unsigned kRanks = 3;
  const TempDir dir(TempDir::Where::kMemory);
  std::mt19937_64 random(3);
  const Weights weights{{"m.a.weight", random_tensor(DType::kBF16, {66, 128}, random)}};
  PublisherOptions options = quick_options();
  options.base_checkpoint = dir.file("base");
  write_base(options.base_checkpoint, kKind.made_of(weights), kKind);
  Trainer::offer_as([](const Weights& all, unsigned rank) {
    MemorySource source({}, 2);
    for (const auto& [name, tensor] : all) {
      source.add(name, tensor, part_of({{0, 0}, tensor.shape}, 1, rank, kRanks));
    }
    return source;
  });
  for (const bool snapshot : {true, false}) {
    options.keep_snapshot = snapshot;
    LoopbackHub hub({}, kRanks);
    Trainer trainer(hub, kRanks, options, weights);
    for (const Status& status : trainer.opened()) {
      EXPECT_NE(status.message().find("cuts groups of 32"), std::string::npos)
          << status.to_string();
    }
  }
  Trainer::offer_as({});
}

}  // namespace
}  // namespace driftless
