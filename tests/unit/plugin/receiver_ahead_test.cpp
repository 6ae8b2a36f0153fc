// SPDX-License-Identifier: Apache-2.0
// A receiver that decodes while it fetches, over a road that fails, damages and stalls: at any time
// it holds exactly the weights of one version, and reports which.
#include <random>

#include "support/receiver_fixture.h"

namespace driftless::testing {
namespace {

class ReceiverAheadTest : public ReceiverTest {
 protected:
  // Expects that it holds the weights of the version that it reports.
  void expect_exact() {
    const TargetState state = receiver_->state();
    ASSERT_TRUE(state.valid);
    ASSERT_TRUE(same(held_, run_.weights[state.id.version])) << state.id.version;
    ASSERT_EQ(state.digest, digest_of(run_.weights[state.id.version]));
  }
  void send_next(Encoding encoding) {
    send(*sender_, run_.step(++sent_, DirectoryLayout::kFrames, encoding));
  }

  std::uint64_t sent_ = 0;
};

// Encodings mixed, versions folded, parts that fail or come damaged, commits taken back.
TEST_F(ReceiverAheadTest, HoldsAVersionWhateverHappens) {
  announce();
  ASSERT_TRUE(open().ok());
  std::mt19937_64 random(8);
  constexpr Encoding kEncodings[] = {Encoding::kCompact, Encoding::kCompact, Encoding::kDeltas,
                                     Encoding::kDeltasZstd};
  constexpr StatusCode kFailures[] = {StatusCode::kNotFound, StatusCode::kCorrupt,
                                      StatusCode::kIncomplete, StatusCode::kIo};
  unsigned undone = 0, failed = 0;
  for (int round = 0; round < 120; ++round) {
    for (std::uint64_t i = 0; i <= random() % 3; ++i) send_next(kEncodings[random() % 4]);
    if (sent_ - receiver_->state().id.version > 4) send(*sender_, run_.anchor(sent_));
    road_.part_failures.clear();
    for (std::uint64_t i = 0; i < random() % 4; ++i) {
      const bool fails = random() % 3 == 0;
      road_.part_failures.push_back(fails ? error(kFailures[random() % 4], "a fault") : Status());
    }
    road_.damaged_parts = random() % 4 == 0 ? 1 : 0;
    const auto done = update();
    failed += done.ok() ? 0 : 1;
    expect_exact();
    if (HasFatalFailure()) return;
    if (done.ok() && random() % 4 == 0) {
      ASSERT_TRUE(receiver_->rollback().ok());
      ++undone;
      expect_exact();
    }
  }
  road_.part_failures.clear();
  road_.damaged_parts = 0;
  while (receiver_->state().id.version < sent_) ASSERT_TRUE(update().ok());
  expect_exact();
  EXPECT_GT(undone, 5U);
  EXPECT_GT(failed, 5U);
}

// Writes as another process would: ThreadSanitizer ignores this write.
__attribute__((no_sanitize("thread"))) void stray_write(std::byte& byte) {
  byte = byte ^ std::byte{2};
}

// While the parts arrive, another process writes into a unit that changes. The version may still
// decode; the sweep of the next version finds the write at the latest.
TEST_F(ReceiverAheadTest, AWriteBetweenTwoPartsIsFoundByTheNextSweep) {
  announce();
  ASSERT_TRUE(open().ok());
  send_next(Encoding::kCompact);
  const std::string name = "model.layers.0.up.weight";
  const auto& before = run_.weights[0].at(name).bytes;
  const auto& after = run_.weights[1].at(name).bytes;
  const auto changed =
      static_cast<std::size_t>(std::ranges::mismatch(before, after).in1 - before.begin());
  road_.once_part = [&] { stray_write(held_.at(name).bytes[changed & ~std::size_t{1}]); };
  Result<UpdateReport> done = update();
  if (done.ok()) {
    send_next(Encoding::kCompact);
    done = update();
  }
  EXPECT_EQ(done.status().code(), StatusCode::kMismatch) << done.status().to_string();
  EXPECT_NE(done.status().message().find(name), std::string::npos) << done.status().to_string();
}

}  // namespace
}  // namespace driftless::testing
