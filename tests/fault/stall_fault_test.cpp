// SPDX-License-Identifier: Apache-2.0
// A file system that stalls for longer than the deadline, at any call: the caller gets its status
// soon after that call returned, nothing is left incomplete, and the next attempt succeeds.
#include <gtest/gtest.h>

#include "collectives/group.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/stalling_file_system.h"
#include "support/temp_dir.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kDeadline = 60ms;
constexpr auto kStall = 80ms;
constexpr auto kBound = 3s;  // far below every default, far above both delays: machines are busy

// A publisher and a receiver in memory. Each has a file system of its own over the same files.
class StallFaultTest : public ::testing::TestWithParam<DirectoryLayout> {
 protected:
  void SetUp() override {
    options_.threads = 1;
    options_.buffer_bytes = 8192;
    options_.layout = GetParam();
    options_.encoding =
        GetParam() == DirectoryLayout::kHfDelta ? Encoding::kXor : Encoding::kDeltasZstd;
    files_.dir = dir_.file("road");
    files_.poll_longest = 5ms;
    road_ = std::move(*make_shared_fs_sender(sender_fs_, files_, 0, 1));
    history_ = std::move(*make_shared_fs_receiver(posix_file_system(), files_));
    options_.deadline = kDeadline;
    MemorySource source(weights_);
    auto opened = Publisher::open(options_, group_, *road_, history_.get(), source);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    publisher_ = std::move(*opened);

    write_checkpoint(dir_.file("base"), weights_);
    receive_road_ = std::move(*make_shared_fs_receiver(receiver_fs_, files_));
    target_ = std::move(*make_owned_target(posix_file_system(), dir_.file("base"), 1));
    ReceiverOptions receive;
    receive.id = "r";
    receive.threads = 1;
    receive.fetch_deadline = kDeadline;
    receive.report_deadline = kDeadline;
    auto followed = Receiver::open(receive, *receive_road_, *target_, Deadline::after(5s));
    ASSERT_TRUE(followed.ok()) << followed.status().to_string();
    receiver_ = std::move(*followed);
  }

  Status publish() {
    MemorySource source(weights_);
    return publisher_->publish(source).status();
  }
  Status update() {
    DRIFTLESS_ASSIGN_OR_RETURN(const bool news, receiver_->stage(Deadline::after(kDeadline)));
    if (!news) return {};
    return receiver_->commit().status();
  }
  // A busy machine may be as slow as a stall, so the work is tried more than once.
  template <typename Work>
  static void succeed_soon(const Work& work) {
    Status status;
    for (int attempt = 0; attempt < 20; ++attempt) {
      status = work();
      if (status.ok()) return;
    }
    FAIL() << status.to_string();
  }
  void expect_followed() {
    const Deadline end = Deadline::after(10s);
    while (target_->state().id.version < publisher_->version().version && !end.expired()) {
      const Status ignored = update();
    }
    for (std::size_t i = 0; i < target_->layout()->size(); ++i) {
      const std::string& name = target_->layout()->tensors()[i].name;
      EXPECT_TRUE(std::ranges::equal(target_->tensor(i), weights_.at(name).bytes)) << name;
    }
  }

  TempDir dir_{TempDir::Where::kMemory};
  Weights weights_ = random_weights(1, 8);
  StallingFileSystem sender_fs_, receiver_fs_;
  SharedFsOptions files_;
  PublisherOptions options_;
  SoloGroup group_;
  std::unique_ptr<SendRoad> road_;
  std::unique_ptr<ReceiveRoad> history_, receive_road_;
  std::unique_ptr<Publisher> publisher_;
  std::unique_ptr<MappedTarget> target_;
  std::unique_ptr<Receiver> receiver_;
};

TEST_P(StallFaultTest, APublisherGivesUpInTimeAndGoesOn) {
  std::uint64_t refused = 0;
  for (std::uint64_t call = 0;; ++call) {
    weights_ = changed_weights(weights_, call, 0.02);
    sender_fs_.plan(call, kStall);
    const auto begin = Deadline::Clock::now();
    const Status status = publish();
    EXPECT_LT(Deadline::Clock::now() - begin, kBound) << "call " << call;
    const bool met = sender_fs_.calls() > call;
    sender_fs_.plan(~std::uint64_t{0}, 0ms);
    if (!status.ok()) {
      ++refused;
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
      succeed_soon([&] { return publish(); });
    }
    expect_followed();
    if (HasFailure() || !met) break;
  }
  EXPECT_GT(refused, 2U) << "no stall met a deadline";
}

TEST_P(StallFaultTest, AReceiverGivesUpInTimeAndGoesOn) {
  std::uint64_t refused = 0;
  for (std::uint64_t call = 0;; ++call) {
    weights_ = changed_weights(weights_, call, 0.02);
    succeed_soon([&] { return publish(); });
    receiver_fs_.plan(call, kStall);
    const auto begin = Deadline::Clock::now();
    const Status status = update();
    EXPECT_LT(Deadline::Clock::now() - begin, kBound) << "call " << call;
    const bool met = receiver_fs_.calls() > call;
    receiver_fs_.plan(~std::uint64_t{0}, 0ms);
    if (!status.ok()) {
      ++refused;
      EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    }
    expect_followed();
    if (HasFailure() || !met) break;
  }
  EXPECT_GT(refused, 2U) << "no stall met a deadline";
}

INSTANTIATE_TEST_SUITE_P(Layouts, StallFaultTest,
                         ::testing::Values(DirectoryLayout::kFlush, DirectoryLayout::kHfDelta));

}  // namespace
}  // namespace driftless::testing
