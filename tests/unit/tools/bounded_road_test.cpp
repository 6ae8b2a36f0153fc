// SPDX-License-Identifier: Apache-2.0
// No call of a rollout waits past --timeout, or after a signal; signing off does.
#include "tools/cli/bounded_road.h"

#include <gtest/gtest.h>

#include <map>

#include "support/still_environment.h"

namespace driftless::cli {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kLong = 1h;
bool stopped = false;

// Records the time that each call may take.
class Recording final : public ReceiveRoad {
 public:
  Result<std::string> run_info(const Deadline& deadline) override {
    return note("run_info", deadline);
  }
  Status check_held(std::uint64_t, std::string_view, const Deadline& deadline) override {
    return note("check_held", deadline);
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    return note("list", deadline);
  }
  Status wait_beyond(std::uint64_t, const Deadline& deadline) override {
    return note("wait_beyond", deadline);
  }
  Result<std::string> fetch_manifest(const PublicationId&, const Deadline& deadline) override {
    return note("fetch_manifest", deadline);
  }
  Result<MappedFile> fetch_part(const PublicationId&, const PartReceipt&,
                                const Deadline& deadline) override {
    return note("fetch_part", deadline);
  }
  Result<std::vector<MappedFile>> fetch_ranges(const PublicationId&, const PartReceipt&,
                                               std::span<const ByteRange>,
                                               const Deadline& deadline) override {
    return note("fetch_ranges", deadline);
  }
  Status fetch_to_device(const PublicationId&, const PartReceipt&, std::span<const DeviceRange>,
                         const DeviceSpace&, const Deadline& deadline) override {
    return note("fetch_to_device", deadline);
  }
  [[nodiscard]] bool fetches_at_once() const override { return false; }
  Status report(const ReceiverReport&, const Deadline& deadline) override {
    return note("report", deadline);
  }
  Status leave(const Deadline& deadline) override { return note("leave", deadline); }
  Result<std::uint64_t> offer_part(const PublicationId&, const PartReceipt&,
                                   std::span<const std::byte>, const Deadline& deadline) override {
    return note("offer_part", deadline);
  }

  std::map<std::string, std::chrono::milliseconds> times;

 private:
  Status note(const std::string& call, const Deadline& deadline) {
    times[call] = deadline.remaining();
    return error(StatusCode::kNotFound, call);
  }
};

class BoundedRoadTest : public ::testing::Test {
 protected:
  ~BoundedRoadTest() override { stopped = false; }

  // The time that each call of the road gets if its caller would wait for an hour.
  auto times_of_calls(std::optional<Deadline> until) {
    BoundedRoad bounded(road_, until, [] { return stopped; });
    ReceiveRoad& road = bounded;
    const Deadline hour = Deadline::after(kLong);
    static_cast<void>(road.run_info(hour));
    static_cast<void>(road.check_held(1, "", hour));
    static_cast<void>(road.list(hour));
    static_cast<void>(road.wait_beyond(1, hour));
    static_cast<void>(road.fetch_manifest({}, hour));
    static_cast<void>(road.fetch_part({}, {}, hour));
    static_cast<void>(road.fetch_ranges({}, {}, {}, hour));
    static_cast<void>(road.fetch_to_device({}, {}, {}, {}, hour));
    static_cast<void>(road.report({}, hour));
    static_cast<void>(road.offer_part({}, {}, {}, hour));
    static_cast<void>(road.leave(hour));
    return road_.times;
  }

  StillEnvironment still_;
  EnvironmentScope scope_{still_};
  Recording road_;
};

TEST_F(BoundedRoadTest, EndsEveryWaitAtTheTimeoutExceptSigningOff) {
  const auto times = times_of_calls(Deadline::after(5s));
  EXPECT_EQ(times.size(), 11U);
  for (const auto& [call, time] : times) EXPECT_EQ(time, call == "leave" ? kLong : 5s) << call;
}

TEST_F(BoundedRoadTest, EndsEveryWaitAfterASignalExceptSigningOff) {
  stopped = true;
  for (const auto& [call, time] : times_of_calls({})) {
    EXPECT_EQ(time, call == "leave" ? kLong : 0s) << call;
  }
}

TEST_F(BoundedRoadTest, LeavesEarlierDeadlinesAsTheyAre) {
  for (const auto& [call, time] : times_of_calls(Deadline::after(2 * kLong))) {
    EXPECT_EQ(time, kLong) << call;
  }
}

}  // namespace
}  // namespace driftless::cli
