// SPDX-License-Identifier: Apache-2.0
// A road that fails at each of its calls, and its fallback: no version is lost, none is applied
// twice, and one log line reports the switch.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <thread>

#include "collectives/fallback/fallback_road.h"
#include "collectives/forwarding_receive_road.h"
#include "collectives/present_announcement.h"
#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/job/announced_run.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "plugin/targets/mapped_target.h"
#include "support/faulty_road.h"
#include "support/forwarding_send_road.h"
#include "support/fp8_base.h"
#include "support/loopback_road.h"
#include "support/published_run.h"
#include "support/temp_dir.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kRanks = 2;

// The loopback road; a test can make it unreachable for some processes.
class Reach final : public ForwardingReceiveRoad {
 public:
  // `run`: what it announces, if that is not empty.
  Reach(std::unique_ptr<ReceiveRoad> road, std::shared_ptr<bool> reached,
        std::shared_ptr<std::string> run, unsigned& leaves)
      : ForwardingReceiveRoad(std::move(road)),
        reached_(std::move(reached)),
        run_(std::move(run)),
        leaves_(leaves) {}
  Result<std::string> run_info(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check());
    if (!run_->empty()) return *run_;
    return road_->run_info(deadline);
  }
  Result<std::vector<PublicationId>> list(const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check());
    return road_->list(deadline);
  }
  Status wait_beyond(std::uint64_t version, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check());
    return road_->wait_beyond(version, deadline);
  }
  Result<std::string> fetch_manifest(const PublicationId& id, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check());
    return road_->fetch_manifest(id, deadline);
  }
  Status report(const ReceiverReport& report, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(check());
    return road_->report(report, deadline);
  }
  Status leave(const Deadline& deadline) override {
    ++leaves_;
    DRIFTLESS_RETURN_IF_ERROR(check());
    return road_->leave(deadline);
  }

 private:
  [[nodiscard]] Status check() const {
    return *reached_ ? Status() : error(StatusCode::kDeadlineExceeded, "the hub does not answer");
  }
  const std::shared_ptr<bool> reached_;
  const std::shared_ptr<std::string> run_;
  unsigned& leaves_;
};

// A fallback that answers slowly.
class SlowRoad final : public ForwardingReceiveRoad {
 public:
  SlowRoad(std::unique_ptr<ReceiveRoad> road, std::chrono::milliseconds delay, unsigned& looks)
      : ForwardingReceiveRoad(std::move(road)), delay_(delay), looks_(looks) {}
  Result<std::string> run_info(const Deadline& deadline) override {
    ++looks_;
    std::this_thread::sleep_for(delay_);
    return road_->run_info(deadline);
  }

 private:
  const std::chrono::milliseconds delay_;
  unsigned& looks_;
};

// Announces, but the first answer is lost if `lost` is set.
class LostAnnouncement final : public ForwardingSendRoad {
 public:
  LostAnnouncement(std::unique_ptr<SendRoad> road, bool& lost)
      : ForwardingSendRoad(std::move(road)), lost_(lost) {}
  Status announce(std::string_view run_info, const Deadline& deadline) override {
    DRIFTLESS_RETURN_IF_ERROR(road_->announce(run_info, deadline));
    return std::exchange(lost_, false) ? error(StatusCode::kIo, "the answer is lost") : Status();
  }

 private:
  bool& lost_;
};

class FallbackFaultTest : public ::testing::TestWithParam<std::pair<RoadFault, unsigned>> {
 protected:
  FallbackFaultTest() {
    files_.dir = directory_.file("road");
    files_.poll_first = 1ms;
    files_.poll_longest = 2ms;
  }
  void TearDown() override { stop_trainer(); }

  // `without`: a rank that cannot open the first road.
  void start_trainer(std::optional<unsigned> without = {}) {
    make_roads(without);
    for (const Status& status : open()) ASSERT_TRUE(status.ok()) << status.to_string();
  }
  void make_roads(std::optional<unsigned> without = {}) {
    hub_ = std::make_unique<LoopbackHub>(LoopbackOptions(), kRanks);
    faulty_.assign(kRanks, nullptr);
    faulty_files_.assign(kRanks, nullptr);
    publishers_.resize(kRanks);
    for (unsigned rank = 0; rank < kRanks; ++rank) {
      groups_.push_back(hub_->group(rank));
      histories_.push_back(std::move(*make_shared_fs_receiver(posix_file_system(), files_)));
      open_.push_back(open_with_fallback(trainer_roads(rank, without == rank)));
      auto sender = open_.back().sender();
      ASSERT_TRUE(sender.ok()) << sender.status().to_string();
      roads_.push_back(std::move(*sender));
    }
  }
  std::vector<Status> open() {
    PublisherOptions options = options_;
    options.threads = 1;
    options.deadline = 10s;
    return each([&](unsigned rank) -> Status {
      MemorySource source = offer(base_, rank);
      if (!options.keep_snapshot) source.stay();
      auto made =
          Publisher::open(options, *groups_[rank], *roads_[rank], histories_[rank].get(), source);
      if (made.ok()) publishers_[rank] = std::move(*made);
      return made.status();
    });
  }
  // The offer of a rank; rollouts hold the same.
  virtual MemorySource offer(const Weights& weights, unsigned rank) {
    return MemorySource(weights, rank, kRanks, 3);
  }
  virtual Weights published(const Weights& weights) { return weights; }
  void stop_trainer() {
    publishers_.clear();
    roads_.clear();
    histories_.clear();
    open_.clear();
    groups_.clear();
  }

  FallbackRoads trainer_roads(unsigned rank, bool without) {
    FallbackRoads roads = common();
    roads.leads = rank == 0;
    if (without) {
      roads.first = error(StatusCode::kIo, "rank ", rank, " cannot serve");
    } else {
      roads.first->sender = [this, rank]() -> Result<std::unique_ptr<SendRoad>> {
        auto made = std::make_unique<FaultyRoad>(hub_->sender(rank));
        faulty_[rank] = made.get();
        return std::unique_ptr<SendRoad>(std::move(made));
      };
    }
    roads.second.sender = [this, rank]() -> Result<std::unique_ptr<SendRoad>> {
      DRIFTLESS_ASSIGN_OR_RETURN(auto files,
                                 make_shared_fs_sender(posix_file_system(), files_, rank, kRanks));
      auto made = std::make_unique<FaultyRoad>(
          std::make_unique<LostAnnouncement>(std::move(files), lose_announcement_));
      faulty_files_[rank] = made.get();
      return std::unique_ptr<SendRoad>(std::move(made));
    };
    roads.held = [this]() -> Result<std::optional<std::string>> {
      DRIFTLESS_RETURN_IF_ERROR(history_fault_);
      DRIFTLESS_ASSIGN_OR_RETURN(const auto history,
                                 make_shared_fs_receiver(posix_file_system(), files_));
      return present_announcement(*history, Deadline::after(0ms));
    };
    return roads;
  }
  FallbackRoads common() {
    FallbackRoads roads;
    roads.name = "shared_fs";
    roads.label = "[P2P]";
    roads.place_key = "road.shared_fs.dir";
    roads.job = job_;
    roads.read = read_announced;
    roads.sign = with_job;
    roads.log = [this](std::string_view line) { lines_.emplace_back(line); };
    return roads;
  }

  std::vector<Status> each(const std::function<Status(unsigned)>& work) {
    std::vector<Status> statuses(kRanks);
    std::thread other([&] { statuses[1] = work(1); });
    statuses[0] = work(0);
    other.join();
    return statuses;
  }
  std::vector<Status> publish() {
    Weights next = changed_weights(weights_.back(), weights_.size(), 0.02);
    const auto statuses = each([&](unsigned rank) -> Status {
      MemorySource source = offer(next, rank);
      return publishers_[rank]->publish(source).status();
    });
    if (statuses[0].ok()) weights_.push_back(std::move(next));
    return statuses;
  }
  void publish_well() {
    for (const Status& status : publish()) ASSERT_TRUE(status.ok()) << status.to_string();
  }

  // A rollout that starts with the base.
  struct Rollout {
    Weights held;
    std::unique_ptr<MappedTarget> target;
    std::shared_ptr<bool> reached = std::make_shared<bool>(true);  // the first road
    std::shared_ptr<std::string> run_of_first = std::make_shared<std::string>();
    unsigned leaves = 0;  // calls to the first road
    unsigned looks = 0;   // at the announcement on the second road
    std::vector<std::string> lines;
    OpenRoad open;
    std::unique_ptr<ReceiveRoad> road;
    std::unique_ptr<Receiver> receiver;
    std::vector<std::uint64_t> versions;
  };
  std::unique_ptr<Rollout> start_rollout(const std::string& id, bool reached = true) {
    Status opened;
    auto made = start_rollout(id, reached, opened);
    EXPECT_TRUE(opened.ok()) << opened.to_string();
    return made;
  }
  Status try_to_start_rollout(const std::string& id) {
    Status opened;
    static_cast<void>(start_rollout(id, true, opened));
    return opened;
  }
  std::unique_ptr<Rollout> start_rollout(const std::string& id, bool reached, Status& opened) {
    auto made = std::make_unique<Rollout>();
    made->held = published(base_);
    *made->reached = reached;
    std::vector<std::byte*> data;
    for (auto& [name, tensor] : made->held) data.push_back(tensor.bytes.data());
    made->target = std::move(*make_memory_target(layout_of(made->held), data, VersionId{}, 1));
    FallbackRoads roads = common();
    roads.log = [rollout = made.get()](std::string_view line) {
      rollout->lines.emplace_back(line);
    };
    roads.first->receiver = [this, rollout = made.get()]() -> Result<std::unique_ptr<ReceiveRoad>> {
      return std::unique_ptr<ReceiveRoad>(std::make_unique<Reach>(
          hub_->receiver(), rollout->reached, rollout->run_of_first, rollout->leaves));
    };
    roads.second.receiver = [this, rollout = made.get()]() -> Result<std::unique_ptr<ReceiveRoad>> {
      DRIFTLESS_ASSIGN_OR_RETURN(auto files, make_shared_fs_receiver(posix_file_system(), files_));
      return std::unique_ptr<ReceiveRoad>(
          std::make_unique<SlowRoad>(std::move(files), look_delay_, rollout->looks));
    };
    made->open = open_with_fallback(std::move(roads));
    made->road = std::move(*made->open.receiver());
    ReceiverOptions options;
    options.id = id;
    options.threads = 1;
    options.report_deadline = 2s;
    options.fetch_deadline = 10s;
    auto receiver = Receiver::open(options, *made->road, *made->target, Deadline::after(20s));
    opened = receiver.status();
    if (!receiver.ok()) return nullptr;
    made->receiver = std::move(*receiver);
    return made;
  }
  // Follows to the newest version, and proves that the weights are those of that version.
  void follow(Rollout& rollout) {
    const std::uint64_t newest = weights_.size() - 1;
    const Deadline deadline = Deadline::after(30s);
    while (rollout.target->state().id.version < newest) {
      const auto staged = rollout.receiver->stage(Deadline::after(2s));
      if (deadline.expired()) FAIL() << staged.status().to_string();
      if (!staged.ok() || !*staged) continue;
      const auto committed = rollout.receiver->commit();
      ASSERT_TRUE(committed.ok()) << committed.status().to_string();
      rollout.versions.push_back(committed->version);
    }
    ASSERT_EQ(rollout.target->state().id.version, newest);
    for (const auto& [name, tensor] : published(weights_.back())) {
      EXPECT_EQ(rollout.held.at(name).bytes, tensor.bytes) << name;
    }
  }

  const TempDir directory_{TempDir::Where::kMemory};
  SharedFsOptions files_;
  PublisherOptions options_;
  Weights base_ = random_weights(1, 16);
  std::vector<Weights> weights_{base_};  // of each version
  std::vector<std::string> lines_;       // of the trainer
  std::chrono::milliseconds look_delay_{0};
  bool lose_announcement_ = false;
  Status history_fault_;
  std::string job_ = "one";
  std::unique_ptr<LoopbackHub> hub_;
  std::vector<FaultyRoad*> faulty_, faulty_files_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<OpenRoad> open_;
  std::vector<std::unique_ptr<SendRoad>> roads_;
  std::vector<std::unique_ptr<ReceiveRoad>> histories_;
  std::vector<std::unique_ptr<Publisher>> publishers_;
};

TEST_P(FallbackFaultTest, AVersionThatFailsGoesByTheFallbackAndNothingIsLost) {
  const auto [fault, bad] = GetParam();
  start_trainer();
  auto near = start_rollout("near"), slow = start_rollout("slow"), cut = start_rollout("cut");
  for (int i = 0; i < 2; ++i) {
    publish_well();
    follow(*near);
  }
  EXPECT_TRUE(lines_.empty());
  faulty_[bad]->arm(fault);
  *cut->reached = false;  // this rollout never held a version of the first road
  publish_well();
  ASSERT_EQ(lines_.size(), 1U) << (lines_.empty() ? "" : lines_.back());
  EXPECT_TRUE(lines_[0].starts_with("[P2P] ")) << lines_[0];
  EXPECT_NE(lines_[0].find("injected"), std::string::npos) << lines_[0];
  EXPECT_TRUE(lines_[0].ends_with("; using shared_fs instead.")) << lines_[0];
  for (const OpenRoad& open : open_) EXPECT_EQ(open.fallback(), "shared_fs");
  follow(*near);
  publish_well();
  for (Rollout* rollout : {near.get(), slow.get(), cut.get()}) follow(*rollout);
  EXPECT_EQ(near->versions, (std::vector<std::uint64_t>{1, 2, 3, 4}));
  auto late = start_rollout("late", false);
  follow(*late);
  for (Rollout* rollout : {near.get(), slow.get(), cut.get(), late.get()}) {
    EXPECT_LE(rollout->leaves, 1U) << "each try may take a second";
    EXPECT_EQ(rollout->lines.size(), 1U);
    EXPECT_EQ(rollout->open.fallback(), "shared_fs");
  }
  // The trainer restarts: the run continues on the road that has its versions.
  const Hash128 run = publishers_[0]->version().run;
  stop_trainer();
  start_trainer();
  EXPECT_EQ(publishers_[0]->version(), (VersionId{run, 4}));
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_NE(lines_[1].find("goes on there"), std::string::npos) << lines_[1];
  publish_well();
  follow(*near);
  EXPECT_EQ(near->versions.back(), 5U);
}

INSTANTIATE_TEST_SUITE_P(
    Faults, FallbackFaultTest,
    ::testing::Values(std::pair(RoadFault::kBegin, 0U), std::pair(RoadFault::kBegin, 1U),
                      std::pair(RoadFault::kCreate, 0U), std::pair(RoadFault::kCreate, 1U),
                      std::pair(RoadFault::kWrite, 1U), std::pair(RoadFault::kFlush, 0U),
                      std::pair(RoadFault::kFlush, 1U), std::pair(RoadFault::kSeal, 0U)));

// Weights in bfloat16 for a base with FP8 blocks; both ranks have a part of some blocks.
class QuantizedFallbackTest : public FallbackFaultTest {
 protected:
  QuantizedFallbackTest() {
    base_ = bf16_matrices(1);
    weights_ = {base_};
    options_.base_checkpoint = directory_.file("base");
    write_base(options_.base_checkpoint, published(base_), {options_.quantize.rule});
  }
  MemorySource offer(const Weights& weights, unsigned rank) override {
    MemorySource source({}, 2);
    for (const auto& [name, tensor] : weights) {
      if (has_fp8_blocks(tensor) && !tensor.bytes.empty()) {
        source.add(name, tensor, part_of({{0, 0}, tensor.shape}, 1, rank, kRanks));
      } else if (rank == 0) {
        source.add(name, tensor);
      }
    }
    return source;
  }
  Weights published(const Weights& weights) override {
    return quantized(weights, options_.quantize.rule);
  }
};

TEST_P(QuantizedFallbackTest, AVersionThatFailsIsMeasuredAndQuantizedAgain) {
  const auto [fault, bad] = GetParam();
  start_trainer();
  auto rollout = start_rollout("rollout");
  for (int i = 0; i < 2; ++i) {
    publish_well();
    follow(*rollout);
  }
  faulty_[bad]->arm(fault);
  publish_well();
  ASSERT_EQ(lines_.size(), 1U);
  follow(*rollout);
  for (int i = 0; i < 2; ++i) {
    publish_well();
    follow(*rollout);
  }
  EXPECT_EQ(rollout->versions, (std::vector<std::uint64_t>{1, 2, 3, 4, 5}));
}

TEST_P(QuantizedFallbackTest, WithoutASnapshotTheFallbackIsRefused) {
  options_.keep_snapshot = false;
  make_roads();
  for (const Status& status : open()) {
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("road.peer.fallback"), std::string::npos) << status.to_string();
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, QuantizedFallbackTest,
                         ::testing::Values(std::pair(RoadFault::kBegin, 1U),
                                           std::pair(RoadFault::kWrite, 0U),
                                           std::pair(RoadFault::kFlush, 1U),
                                           std::pair(RoadFault::kSeal, 0U)));

class FallbackTest : public FallbackFaultTest {};
INSTANTIATE_TEST_SUITE_P(Once, FallbackTest, ::testing::Values(std::pair(RoadFault::kNone, 0U)));

TEST_P(FallbackTest, ARankThatCannotServeSendsAllRanksToTheFallbackAtTheStart) {
  start_trainer(1);
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_EQ(lines_[0], "[P2P] publisher rank 1: rank 1 cannot serve; using shared_fs instead.");
  auto rollout = start_rollout("rollout");
  publish_well();
  follow(*rollout);
  EXPECT_EQ(rollout->versions, std::vector<std::uint64_t>{1});
}

// If full versions do not fit one rank's ring, that is known before the first version: none fails.
TEST_P(FallbackTest, ARingThatIsTooSmallSendsAllRanksToTheFallbackAtTheStart) {
  options_.mode = UpdateMode::kFull;
  make_roads();
  faulty_[1]->limit(1000);
  for (const Status& status : open()) ASSERT_TRUE(status.ok()) << status.to_string();
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_EQ(lines_[0], "[P2P] publisher rank 1: a ring of 1000 bytes; using shared_fs instead.");
  auto rollout = start_rollout("rollout");
  publish_well();
  follow(*rollout);
  EXPECT_EQ(rollout->versions, std::vector<std::uint64_t>{1});
}

// Deltas may fit even if a full version does not: that is only known once they are made.
TEST_P(FallbackTest, ASmallRingIsNoReasonToGoOverForDeltas) {
  make_roads();
  faulty_[1]->limit(1000);
  for (const Status& status : open()) ASSERT_TRUE(status.ok()) << status.to_string();
  publish_well();
  EXPECT_EQ(faulty_[1]->asked_bytes(), 0U);
  EXPECT_TRUE(lines_.empty());
}

TEST_P(FallbackTest, ASealWhoseAnswerIsLostIsNoReasonToGoOver) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  faulty_[0]->arm(RoadFault::kSealLost);
  publish_well();
  follow(*rollout);
  EXPECT_TRUE(lines_.empty());
}

// Between the announcement on the fallback and the first version there: the version's number is not
// used again for other weights, and rollouts that hold versions of the first road can follow.
TEST_P(FallbackTest, ATrainerThatEndsWhileItGoesOverUsesNoNumberAgain) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  publish_well();
  publish_well();
  follow(*rollout);
  faulty_[1]->arm(RoadFault::kFlush);
  faulty_files_[1]->arm(RoadFault::kFlush);
  for (const Status& status : publish()) EXPECT_FALSE(status.ok());
  stop_trainer();
  start_trainer();
  // The trainer has the base again: now only the rollout has the weights of versions 1 and 2.
  publish_well();
  EXPECT_EQ(publishers_[0]->version().version, 3U);
  follow(*rollout);
  EXPECT_EQ(rollout->versions.back(), 3U);
}

TEST_P(FallbackTest, ARolloutThatCannotReadWhereTheTrainerPublishesFailsByItsDeadline) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  *rollout->reached = false;
  publish_well();
  const auto waited = rollout->receiver->poll(Deadline::after(1'500ms));
  EXPECT_TRUE(!waited.ok() || !waited->newer);
  EXPECT_TRUE(rollout->lines.empty());
}

// The run is announced on the fallback, but the trainer does not learn it: rollouts switch, so no
// version may go by the first road any more.
TEST_P(FallbackTest, AnUnconfirmedSwitchIsCompletedByTheNextVersion) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  publish_well();
  follow(*rollout);
  lose_announcement_ = true;
  faulty_[1]->arm(RoadFault::kFlush);
  for (const Status& status : publish()) EXPECT_FALSE(status.ok());
  EXPECT_TRUE(lines_.empty());
  const auto waited = rollout->receiver->poll(Deadline::after(1'500ms));
  EXPECT_TRUE(!waited.ok() || !waited->newer);
  EXPECT_EQ(rollout->open.fallback(), "shared_fs");
  for (int i = 0; i < 2; ++i) {
    publish_well();
    follow(*rollout);
  }
  EXPECT_EQ(lines_.size(), 1U);
  EXPECT_EQ(rollout->versions, (std::vector<std::uint64_t>{1, 2, 3}));
}

// Otherwise the trainer would publish peer to peer, and rollouts would wait on the fallback.
TEST_P(FallbackTest, ATrainerThatCannotReadItsFallbackDoesNotStart) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  faulty_[1]->arm(RoadFault::kFlush);
  publish_well();
  follow(*rollout);
  stop_trainer();
  history_fault_ = error(StatusCode::kIo, "the store does not answer");
  const auto sender = open_with_fallback(trainer_roads(0, false)).sender();
  ASSERT_FALSE(sender.ok());
  EXPECT_EQ(sender.status().code(), StatusCode::kIo) << sender.status().to_string();
  EXPECT_NE(sender.status().message().find("the fallback shared_fs"), std::string::npos);
  history_fault_ = {};
  start_trainer();
  publish_well();
  follow(*rollout);
}

// A second job uses the directory of the first one's fallback, by mistake.
class SharedFallbackTest : public FallbackFaultTest {
 protected:
  // Replaces the run in the directory by one of `job`, or lets that job announce the first run.
  void announce_in_directory(const std::string& job) {
    RunInfo info;
    info.run = {7, 7};
    info.layout = layout_of(base_);
    std::ofstream(files_.dir + "/run.json") << with_job(run_info_to_json(info), job);
  }
  std::string announcement() {
    std::ostringstream text;
    text << std::ifstream(files_.dir + "/run.json").rdbuf();
    return text.str();
  }
  // The result of waiting for something past the newest version, for up to `time`.
  static Status wait(Rollout& rollout, std::chrono::milliseconds time) {
    const Deadline deadline = Deadline::after(time);
    for (;;) {
      const auto staged = rollout.receiver->stage(Deadline::after(500ms));
      if (!staged.ok()) return staged.status();
      if (deadline.expired()) return {};
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Once, SharedFallbackTest,
                         ::testing::Values(std::pair(RoadFault::kNone, 0U)));

TEST_P(SharedFallbackTest, TheAnnouncementNamesTheJobAlsoAfterARestart) {
  start_trainer();
  publish_well();
  faulty_[1]->arm(RoadFault::kFlush);
  publish_well();
  const std::string announced = announcement();
  EXPECT_EQ(read_announced(announced)->job, "one");
  stop_trainer();
  job_.clear();  // its secret cannot be read now
  start_trainer();
  publish_well();
  EXPECT_EQ(announcement(), announced);
}

TEST_P(SharedFallbackTest, ATrainerDoesNotStartOnTheRunOfAnotherJob) {
  start_trainer();
  faulty_[1]->arm(RoadFault::kFlush);
  publish_well();
  stop_trainer();
  job_ = "two";
  const auto sender = open_with_fallback(trainer_roads(0, false)).sender();
  ASSERT_FALSE(sender.ok());
  EXPECT_EQ(sender.status().code(), StatusCode::kAlreadyExists);
  EXPECT_NE(sender.status().message().find("set another road.shared_fs.dir"), std::string::npos)
      << sender.status().to_string();
}

TEST_P(SharedFallbackTest, RolloutsDoNotFollowTheRunOfAnotherJob) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  publish_well();
  follow(*rollout);
  announce_in_directory("two");
  auto late = start_rollout("late");  // follows no run yet
  ASSERT_NE(late, nullptr);
  for (int i = 0; i < 2; ++i) {
    publish_well();
    for (Rollout* each : {rollout.get(), late.get()}) {
      ASSERT_TRUE(wait(*each, 600ms).ok());  // looks at the directory
      follow(*each);
    }
  }
  for (Rollout* each : {rollout.get(), late.get()}) {
    EXPECT_EQ(each->open.fallback(), "");
    ASSERT_EQ(each->lines.size(), 1U);
    const std::string& line = each->lines[0];
    EXPECT_NE(line.find("of another job: it is not followed; set another road.shared_fs.dir"),
              std::string::npos)
        << line;
  }
}

// Both jobs have one secret, so only the runs differ.
TEST_P(SharedFallbackTest, IfTheRoadsHaveTwoRunsARolloutStaysAndANewOneIsRefused) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  publish_well();
  follow(*rollout);
  announce_in_directory("one");
  ASSERT_TRUE(wait(*rollout, 600ms).ok());
  publish_well();
  follow(*rollout);
  EXPECT_EQ(rollout->open.fallback(), "");
  EXPECT_EQ(rollout->lines.size(), 1U);
  const Status refused = try_to_start_rollout("late");
  EXPECT_EQ(refused.code(), StatusCode::kWrongRun);
  EXPECT_NE(refused.message().find("set road.shared_fs.dir as for that trainer"), std::string::npos)
      << refused.to_string();
  // The trainer cannot switch, and reports why.
  faulty_[1]->arm(RoadFault::kFlush);
  const Status failed = publish()[0];
  EXPECT_FALSE(failed.ok());
  EXPECT_NE(failed.message().find("belongs to another run"), std::string::npos)
      << failed.to_string();
  publish_well();
  follow(*rollout);
}

// The trainer was started again with an empty directory, so it publishes a new run peer to peer.
TEST_P(SharedFallbackTest, ARolloutThatIsLeftBehindOnTheFallbackEnds) {
  start_trainer();
  auto rollout = start_rollout("rollout");
  publish_well();
  faulty_[1]->arm(RoadFault::kFlush);
  publish_well();
  follow(*rollout);
  EXPECT_EQ(rollout->open.fallback(), "shared_fs");
  *rollout->run_of_first = "{\"run\":\"a new one\"}";
  const Status left = wait(*rollout, 12s);
  EXPECT_EQ(left.code(), StatusCode::kWrongRun);
  EXPECT_NE(left.message().find("publishes run a new one"), std::string::npos) << left.to_string();
}

TEST_P(FallbackTest, AFallbackThatAnswersSlowlyIsSeldomAsked) {
  start_trainer();
  look_delay_ = 300ms;
  auto rollout = start_rollout("rollout");
  publish_well();
  follow(*rollout);
  rollout->looks = 0;
  static_cast<void>(rollout->receiver->poll(Deadline::after(2s)));
  EXPECT_LE(rollout->looks, 1U);
}

}  // namespace
}  // namespace driftless::testing
