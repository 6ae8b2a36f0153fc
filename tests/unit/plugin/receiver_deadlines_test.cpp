// SPDX-License-Identifier: Apache-2.0
// A road that stops to answer holds a receiver up no longer than its deadlines.
#include <thread>

#include "support/receiver_fixture.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

// Once it is stopped, each call takes all of its time, as if the trainer were stopped.
class StoppedRoad final : public ForwardingReceiveRoad {
 public:
  explicit StoppedRoad(std::unique_ptr<ReceiveRoad> road)
      : ForwardingReceiveRoad(std::move(road)) {}
  bool stopped = false;
  bool stops_after_run_info = false;

  Result<std::string> run_info(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(wait(deadline));
    stopped = stops_after_run_info;
    return road_->run_info(deadline);
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(wait(deadline));
    return road_->list(deadline);
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(wait(deadline));
    return road_->wait_beyond(version, deadline);
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(wait(deadline));
    return road_->fetch_manifest(id, deadline);
  }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(wait(deadline));
    return road_->report(report, deadline);
  }
  Status leave(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(wait(deadline));
    return road_->leave(deadline);
  }

 private:
  [[nodiscard]] Status wait(const Deadline& deadline) const {
    if (!stopped) return {};
    std::this_thread::sleep_until(deadline.at());
    return deadline.check("the trainer does not answer");
  }
};

class ReceiverDeadlinesTest : public ReceiverTest {
 protected:
  ReceiverDeadlinesTest() {
    announce();
    options_.fetch_deadline = 20s;
    options_.connect_deadline = 2s;
  }
  static std::chrono::milliseconds since(std::chrono::steady_clock::time_point begin) {
    const auto took = std::chrono::steady_clock::now() - begin;
    return std::chrono::duration_cast<std::chrono::milliseconds>(took);
  }
  Status open_at(std::uint64_t version, const Deadline& deadline) {
    held_ = run_.weights[version];
    auto target = make_memory_target(run_.layout, pointers(held_), VersionId{run_.run, version}, 1);
    if (!target.ok()) return target.status();
    target_ = std::move(*target);
    auto opened = Receiver::open(options_, stopped_, *target_, deadline);
    if (opened.ok()) receiver_ = std::move(*opened);
    return opened.status();
  }
  Status follow_until_contact_is_lost() {
    for (;;) {
      static_cast<void>(receiver_->stage(Deadline::after(200ms)));
      if (const Status contact = receiver_->check_contact(); !contact.ok()) return contact;
    }
  }

  StoppedRoad stopped_{hub_.receiver()};
};

TEST_F(ReceiverDeadlinesTest, WhileItFollows) {
  publish(1, 1);
  ASSERT_TRUE(open_at(1, Deadline::after(10s)).ok());
  stopped_.stopped = true;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(follow_until_contact_is_lost().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(since(begin), 2s);
  EXPECT_LE(since(begin), 4s);
  const auto leaving = std::chrono::steady_clock::now();
  EXPECT_FALSE(receiver_->leave().ok());
  EXPECT_LE(since(leaving), 2s);
}

TEST_F(ReceiverDeadlinesTest, WhileItOpens) {
  publish(1, 3);
  stopped_.stops_after_run_info = true;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(open_at(3, Deadline::after(2s)).ok());
  EXPECT_LE(since(begin), 5s);
}

// Nothing proves the version that it holds: it looks for the manifest before each wait.
TEST_F(ReceiverDeadlinesTest, WhileItsVersionIsUnproven) {
  for (std::uint64_t version = 1; version <= 3; ++version) static_cast<void>(run_.step(version));
  ASSERT_TRUE(open_at(3, Deadline::after(10s)).ok());
  ASSERT_NE(receiver_->unproven(), "");
  stopped_.stopped = true;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(follow_until_contact_is_lost().ok());
  EXPECT_LE(since(begin), 6s);
}

}  // namespace
}  // namespace driftless::testing
