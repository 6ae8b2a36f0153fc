// SPDX-License-Identifier: Apache-2.0
// The shared_fs road under faults: whichever call fails or is the last, a publication is complete
// or not visible at all, the earlier ones are unchanged, and the road still works.
#include <gtest/gtest.h>

#include <filesystem>

#include "collectives/shared_fs/shared_fs_road.h"
#include "support/faulty_file_system.h"
#include "support/road_contract.h"
#include "support/temp_dir.h"

namespace driftless::testing {
namespace {

namespace stdfs = std::filesystem;

// Two ranks on one file system, in one thread.
class World : public RoadWorld {
 public:
  World(FileSystem& fs, const SharedFsOptions& options) {
    for (unsigned rank = 0; rank < 2; ++rank) {
      auto sender = make_shared_fs_sender(fs, options, rank, 2);
      opened_ = opened_.ok() ? sender.status() : opened_;
      if (sender.ok()) senders_.push_back(std::move(*sender));
    }
  }
  [[nodiscard]] const Status& opened() const { return opened_; }
  [[nodiscard]] unsigned ranks() const override { return 2; }
  [[nodiscard]] SendRoad& sender(unsigned rank) override { return *senders_[rank]; }
  [[nodiscard]] Group& group(unsigned) override { return group_; }
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver() override { return nullptr; }

 private:
  Status opened_;
  SoloGroup group_;
  std::vector<std::unique_ptr<SendRoad>> senders_;
};

// As publish() of the contract suite, but without threads: the order of calls must be the same in
// each run.
Status publish_in_turn(World& world, const PublicationId& id, const RankParts& parts) {
  for (unsigned rank = 0; rank < 2; ++rank) {
    DRIFTLESS_RETURN_IF_ERROR(world.sender(rank).begin(id, soon()));
  }
  for (unsigned rank = 0; rank < 2; ++rank) {
    for (const TestPart& part : parts[rank]) {
      DRIFTLESS_RETURN_IF_ERROR(write_part(world.sender(rank), part));
    }
    const auto flushed = world.sender(rank).flush(soon());
    DRIFTLESS_RETURN_IF_ERROR(flushed.status());
  }
  return world.sender(0).seal(manifest_of(id), soon());
}

class SharedFsFaultTest : public ::testing::Test {
 protected:
  SharedFsFaultTest() {
    options_.dir = dir_.file("road");
    options_.poll_first = options_.poll_longest = std::chrono::milliseconds(1);
  }

  static RankParts parts_of(const PublicationId& id) {
    return some_parts(2, 2, 1500, 2 * id.version + (id.kind == PublicationKind::kAnchor ? 1 : 0));
  }

  // The state before the fault: two steps and an anchor, durable.
  void start_afresh() {
    stdfs::remove_all(options_.dir);
    stdfs::remove_all(dir_.file("stash"));
    stdfs::create_directory(dir_.file("stash"));
    World world(posix_file_system(), options_);
    ASSERT_OK(world.opened());
    ASSERT_OK(world.sender(0).announce("run", soon()));
    for (const PublicationId& id : {step(1), step(2), anchor(2)}) {
      ASSERT_OK(publish_in_turn(world, id, parts_of(id)));
    }
  }

  // Everything that a receiver lists can be fetched, and has the bytes that were published.
  std::vector<PublicationId> expect_whole(std::uint64_t at) {
    auto road = make_shared_fs_receiver(posix_file_system(), options_);
    EXPECT_TRUE(is_ok(road));
    const auto ids = (*road)->list(soon());
    EXPECT_TRUE(is_ok(ids));
    for (const PublicationId& id : *ids) {
      SCOPED_TRACE(concat(to_string(id), ", fault at call ", at));
      std::vector<PartReceipt> receipts;
      const RankParts parts = parts_of(id);
      for (unsigned rank = 0; rank < 2; ++rank) {
        for (const TestPart& part : parts[rank]) {
          receipts.push_back({part.name, rank, part.bytes.size(), xxh3_128(part.bytes), 0});
        }
      }
      expect_fetched(**road, id, parts, receipts);
    }
    return *ids;
  }

  static bool has(const std::vector<PublicationId>& ids, const PublicationId& id) {
    return std::ranges::find(ids, id) != ids.end();
  }

  // One publisher under a fault: open, publish, prune. Returns whether the fault occurred.
  bool play(Fault fault, std::uint64_t at, double keep) {
    start_afresh();
    FaultyFileSystem faulty(fault, at, dir_.file("stash"));
    Status published = error(StatusCode::kInternal, "not tried");
    {
      World world(faulty, options_);
      if (world.opened().ok()) {
        published = publish_in_turn(world, step(3), parts_of(step(3)));
        if (published.ok()) {
          const auto pruned = world.sender(0).prune(2);
        } else if (!faulty.crashed()) {
          go_on(world, faulty, at);
        }
      }
    }
    const bool met = faulty.calls() > at;
    if (faulty.crashed()) faulty.lose_unsynced(keep, at);
    const auto ids = expect_whole(at);
    EXPECT_TRUE(has(ids, anchor(2))) << "call " << at;
    if (published.ok()) {
      EXPECT_TRUE(has(ids, step(3))) << "promised and lost, call " << at;
    }
    expect_next_publisher(ids, at);
    return met;
  }

  // The same publisher continues after the fault.
  void go_on(World& world, FaultyFileSystem& faulty, std::uint64_t at) {
    faulty.plan(Fault::kNone, 0);
    const auto seen = world.sender(0).published(step(3), soon());
    ASSERT_OK(seen);
    if (*seen) return;
    for (unsigned rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(is_ok(world.sender(rank).abort())) << "call " << at;
    }
    EXPECT_TRUE(is_ok(publish_in_turn(world, step(3), parts_of(step(3))))) << "call " << at;
  }

  // Another process takes over, and leaves no hidden file behind.
  void expect_next_publisher(const std::vector<PublicationId>& ids, std::uint64_t at) {
    World world(posix_file_system(), options_);
    ASSERT_OK(world.opened());
    ASSERT_OK(world.sender(0).announce("run", soon()));
    const PublicationId next = has(ids, step(3)) ? step(4) : step(3);
    EXPECT_TRUE(is_ok(publish_in_turn(world, next, parts_of(next)))) << "call " << at;
    EXPECT_TRUE(has(expect_whole(at), next));
    for (const auto& entry : stdfs::directory_iterator(options_.dir)) {
      EXPECT_FALSE(entry.path().filename().string().ends_with(".tmp")) << entry.path();
    }
  }

  void play_everywhere(Fault fault, double keep) {
    std::uint64_t calls = 0;
    while (play(fault, calls, keep) && !HasFailure()) ++calls;
    EXPECT_GT(calls, 20U) << "the faults did not reach the work";
  }

  TempDir dir_{TempDir::Where::kMemory};
  SharedFsOptions options_;
};

TEST_F(SharedFsFaultTest, EioAtEveryCall) { play_everywhere(Fault::kEio, 0); }
TEST_F(SharedFsFaultTest, NoSpaceAtEveryCall) { play_everywhere(Fault::kShortWrite, 0); }
TEST_F(SharedFsFaultTest, AFullDiskFromEveryCallOn) { play_everywhere(Fault::kFull, 0); }
TEST_F(SharedFsFaultTest, KilledBeforeEveryCall) { play_everywhere(Fault::kCrashBefore, 1); }
TEST_F(SharedFsFaultTest, LosingAllThatWasNotSynced) { play_everywhere(Fault::kCrashAfter, 0); }
TEST_F(SharedFsFaultTest, LosingARandomPart) { play_everywhere(Fault::kCrashAfter, 0.5); }

}  // namespace
}  // namespace driftless::testing
