// SPDX-License-Identifier: Apache-2.0
// The agent hands publications over: fetched once, inflated, and followed by real receivers.
#include "plugin/agent/relay.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "collectives/host_shm/host_shm_road.h"
#include "formats/checkpoint.h"
#include "formats/zstd_stream.h"
#include "plugin/agent/changed_tensors.h"
#include "plugin/receive/receiver.h"
#include "support/loopback_job.h"
#include "support/published_run.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(10s); }
Deadline now() { return Deadline::after(0ms); }

class AgentRelayTest : public ::testing::Test {
 protected:
  AgentRelayTest() {
    shm_.dir = dir_.path();
    options_.fetch_deadline = 500ms;
  }
  void SetUp() override {
    ASSERT_TRUE(trainer_->announce(run_info_to_json(run_.info()), soon()).ok());
    auto down = make_host_shm_sender(shm_);
    ASSERT_TRUE(down.ok());
    down_ = std::move(*down);
  }
  void open() {
    auto relay = Relay::open(options_, *up_, *down_, soon());
    ASSERT_TRUE(relay.ok()) << relay.status().to_string();
    relay_ = std::move(*relay);
  }
  std::uint64_t relay_all() {
    std::uint64_t carried = 0;
    for (;;) {
      const auto report = relay_->follow(now());
      EXPECT_TRUE(report.ok()) << report.status().to_string();
      if (!report.ok() || !*report) return carried;
      ++carried;
    }
  }

  // A worker on this host, with weights of its own.
  struct Worker {
    Worker(const HostShmOptions& shm, const std::string& id, Weights start,
           const WeightLayout& layout, bool empty, const std::vector<Encoding>& encodings)
        : weights(std::move(start)), road(std::move(*make_host_shm_receiver(shm))) {
      target = std::move(*make_memory_target(layout, pointers(weights),
                                             empty ? std::nullopt : std::optional(VersionId{}), 1));
      ReceiverOptions options;
      options.id = id;
      options.fetch_deadline = 300ms;
      options.encodings = encodings;
      auto opened = Receiver::open(options, *road, *target, soon());
      EXPECT_TRUE(opened.ok()) << opened.status().to_string();
      receiver = std::move(*opened);
    }
    Status follow() {
      for (;;) {
        DRIFTLESS_ASSIGN_OR_RETURN(const bool news, receiver->stage(now()));
        if (!news) return {};
        DRIFTLESS_RETURN_IF_ERROR(receiver->commit().status());
      }
    }
    Weights weights;
    std::unique_ptr<ReceiveRoad> road;
    std::unique_ptr<WeightTarget> target;
    std::unique_ptr<Receiver> receiver;
  };
  std::unique_ptr<Worker> worker(const std::string& id, bool empty = false) {
    return std::make_unique<Worker>(shm_, id, run_.weights.front(), run_.layout, empty, encodings_);
  }

  TempDir dir_{TempDir::Where::kMemory};
  HostShmOptions shm_;
  PublishedRun run_{random_weights(1)};
  LoopbackHub hub_{{}, 1};
  std::unique_ptr<SendRoad> trainer_ = hub_.sender(0);
  std::unique_ptr<ReceiveRoad> up_ = hub_.receiver();
  std::unique_ptr<SendRoad> down_;
  RelayOptions options_;
  std::vector<Encoding> encodings_;  // that workers read; empty: all
  std::unique_ptr<Relay> relay_;
};

TEST_F(AgentRelayTest, EveryLayoutAndEncodingArrivesBitForBit) {
  open();
  const auto first = worker("first");
  const auto second = worker("second");
  std::uint64_t version = 0;
  for (const auto& [layout, encoding] : std::vector<std::pair<DirectoryLayout, Encoding>>{
           {DirectoryLayout::kFrames, Encoding::kIndices},
           {DirectoryLayout::kFrames, Encoding::kDeltas},
           {DirectoryLayout::kFrames, Encoding::kDeltasZstd},
           {DirectoryLayout::kFrames, Encoding::kCompact},
           {DirectoryLayout::kFlush, Encoding::kIndices},
           {DirectoryLayout::kFlush, Encoding::kDeltasZstd},
           {DirectoryLayout::kHfDelta, Encoding::kXor},
           {DirectoryLayout::kHfDelta, Encoding::kOverwrite}}) {
    send(*trainer_, run_.step(++version, layout, encoding));
    const auto report = relay_->follow(soon());
    ASSERT_TRUE(report.ok() && *report) << report.status().to_string();
    EXPECT_EQ((*report)->update.version, version);
    EXPECT_EQ((*report)->update.digest, digest_of(run_.weights[version]));
    for (Worker* each : {first.get(), second.get()}) {
      const Status followed = each->follow();
      ASSERT_TRUE(followed.ok()) << to_string(layout) << ": " << followed.to_string();
      EXPECT_TRUE(same(each->weights, run_.weights[version])) << to_string(layout);
    }
  }
  EXPECT_EQ(relay_->version(), version);
}

TEST_F(AgentRelayTest, NothingCompressedReachesTheWorkers) {
  open();
  send(*trainer_, run_.step(1, DirectoryLayout::kFrames, Encoding::kDeltasZstd));
  send(*trainer_, run_.step(2, DirectoryLayout::kFlush, Encoding::kDeltasZstd));
  EXPECT_EQ(relay_all(), 2U);
  auto road = make_host_shm_receiver(shm_);
  for (const std::uint64_t version : {1U, 2U}) {
    const PublicationId id{version, PublicationKind::kVersion};
    const auto text = (*road)->fetch_manifest(id, soon());
    ASSERT_TRUE(text.ok());
    const auto manifest = parse_manifest(*text, "manifest");
    ASSERT_TRUE(manifest.ok());
    for (const ManifestFile& file : manifest->files) {
      const auto part = (*road)->fetch_part(
          id, {file.name, file.rank, file.size_bytes, file.hash, file.locator}, soon());
      ASSERT_TRUE(part.ok()) << part.status().to_string();
      EXPECT_EQ(xxh3_128(part->bytes()), file.hash);
      EXPECT_FALSE(is_zstd_frame(part->bytes())) << file.name;
      if (version != 1) continue;
      const auto frame = read_frame_header(part->bytes());
      ASSERT_TRUE(frame.ok());
      EXPECT_EQ(frame->context.encoding, Encoding::kDeltas);
    }
  }
}

// The publisher then sends `deltas`.
TEST_F(AgentRelayTest, WorkersThatCannotDecodeCompactAreAnnounced) {
  options_.workers = 1;
  encodings_ = {Encoding::kDeltas, Encoding::kFull};
  open();
  const auto first = worker("first");
  ASSERT_TRUE(relay_->help().ok());
  const auto needs = parse_needs(relay_->needs(), "the agent");
  ASSERT_TRUE(needs.ok()) << needs.status().to_string();
  EXPECT_FALSE(needs->old_values);
  EXPECT_EQ(std::ranges::find(needs->encodings, Encoding::kCompact), needs->encodings.end());
}

TEST_F(AgentRelayTest, ADamagedVersionIsNotHandedOn) {
  open();
  Publication damaged = run_.step(1);
  damaged.parts.begin()->second.back() ^= std::byte{1};
  send(*trainer_, damaged);
  const auto report = relay_->follow(soon());
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(report.status().message().find(damaged.parts.begin()->first), std::string::npos);
  EXPECT_TRUE((*make_host_shm_receiver(shm_))->list(soon())->empty());
  EXPECT_EQ(relay_->version(), 0U);
}

TEST_F(AgentRelayTest, AnAnchorLeadsPastADamagedVersion) {
  open();
  const auto steady = worker("steady");
  Publication damaged = run_.step(1);
  damaged.parts.begin()->second.back() ^= std::byte{1};
  send(*trainer_, damaged);
  Publication anchor = run_.anchor(1);
  anchor.parts.begin()->second.back() ^= std::byte{1};
  send(*trainer_, anchor);
  EXPECT_EQ(relay_->follow(soon()).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(relay_->help().status().code(), StatusCode::kCorrupt) << "the anchor, too";
  for (int tries = 0; tries < 2; ++tries) {
    const auto helped = relay_->help();
    ASSERT_TRUE(helped.ok()) << helped.status().to_string();
    EXPECT_TRUE(relay_->wants_anchor());
    EXPECT_EQ(relay_->follow(soon()).status().code(), StatusCode::kCorrupt);
  }
  send(*trainer_, run_.step(2));
  send(*trainer_, run_.anchor(2));
  const auto helped = relay_->help();
  ASSERT_TRUE(helped.ok() && *helped) << helped.status().to_string();
  EXPECT_FALSE(relay_->wants_anchor());
  EXPECT_EQ(relay_all(), 0U) << "the anchor is version 2 for the workers";
  EXPECT_EQ(relay_->version(), 2U);
  ASSERT_EQ(steady->follow().to_string(), "ok");
  EXPECT_TRUE(same(steady->weights, run_.weights[2]));
  send(*trainer_, run_.step(3));
  EXPECT_EQ(relay_all(), 1U);
  ASSERT_EQ(steady->follow().to_string(), "ok");
  EXPECT_TRUE(same(steady->weights, run_.weights[3]));
}

TEST_F(AgentRelayTest, AnAnchorTakesThePlaceOfADamagedLastVersion) {
  open();
  const auto steady = worker("steady"), slow = worker("slow");
  send(*trainer_, run_.step(1));
  EXPECT_EQ(relay_all(), 1U);
  ASSERT_EQ(steady->follow().to_string(), "ok");
  const auto empty = worker("empty", true);
  Publication damaged = run_.step(2);
  damaged.parts.begin()->second.back() ^= std::byte{1};
  send(*trainer_, damaged);
  EXPECT_EQ(relay_->follow(soon()).status().code(), StatusCode::kCorrupt);
  send(*trainer_, run_.anchor(2));  // a trainer that ends makes this anchor
  const auto helped = relay_->help();
  ASSERT_TRUE(helped.ok() && *helped) << helped.status().to_string();
  EXPECT_TRUE((*helped)->update.anchor);
  EXPECT_EQ(relay_->version(), 2U);
  const auto again = relay_->help();
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(*again) << "it serves the one that holds nothing, too";
  for (Worker* each : {steady.get(), slow.get(), empty.get()}) {
    ASSERT_EQ(each->follow().to_string(), "ok");
    EXPECT_EQ(each->receiver->state().id.version, 2U);
    EXPECT_TRUE(same(each->weights, run_.weights[2]));
  }
  ASSERT_TRUE(relay_->help().ok());
  EXPECT_FALSE(relay_->wants_anchor());
}

TEST_F(AgentRelayTest, AnAnchorForOneWorkerIsNotTakenByThoseThatFollow) {
  open();
  const auto steady = worker("steady"), empty = worker("empty", true);
  send(*trainer_, run_.step(1));
  EXPECT_EQ(relay_all(), 1U);
  ASSERT_EQ(steady->follow().to_string(), "ok");
  send(*trainer_, run_.step(2));
  send(*trainer_, run_.anchor(2));
  const auto helped = relay_->help();
  ASSERT_TRUE(helped.ok() && *helped) << helped.status().to_string();
  EXPECT_FALSE(*steady->receiver->stage(now())) << "version 2 comes";
  EXPECT_EQ(relay_all(), 1U);
  ASSERT_TRUE(*steady->receiver->stage(now()));
  const auto taken = steady->receiver->commit();
  ASSERT_TRUE(taken.ok());
  EXPECT_FALSE(taken->anchor);
  ASSERT_EQ(empty->follow().to_string(), "ok");
}

TEST_F(AgentRelayTest, AFullVersionLeadsPastADamagedOne) {
  open();
  const auto steady = worker("steady");
  Publication damaged = run_.step(1);
  damaged.parts.begin()->second.back() ^= std::byte{1};
  send(*trainer_, damaged);
  EXPECT_EQ(relay_->follow(soon()).status().code(), StatusCode::kCorrupt);
  send(*trainer_, run_.step(2, DirectoryLayout::kFrames, Encoding::kFull));
  const auto helped = relay_->help();
  ASSERT_TRUE(helped.ok() && *helped) << helped.status().to_string();
  EXPECT_EQ(relay_->version(), 2U);
  ASSERT_EQ(steady->follow().to_string(), "ok");
  EXPECT_TRUE(same(steady->weights, run_.weights[2]));
}

TEST_F(AgentRelayTest, AVersionThatIsTooLargeForItsLayoutIsDamaged) {
  open();
  Publication damaged = run_.step(1);
  damaged.manifest.files.front().size_bytes = std::uint64_t{1} << 40;
  send(*trainer_, damaged);
  EXPECT_EQ(relay_->follow(soon()).status().code(), StatusCode::kCorrupt);
  ASSERT_TRUE(relay_->help().ok());
  EXPECT_TRUE(relay_->wants_anchor());
}

TEST_F(AgentRelayTest, AnotherRunIsRefused) {
  open();
  Publication other = run_.step(1);
  other.manifest.id.run = {77, 88};
  send(*trainer_, other);
  EXPECT_EQ(relay_->follow(soon()).status().code(), StatusCode::kWrongRun);
}

TEST_F(AgentRelayTest, AWorkerWithoutAVersionGetsTheNewestAnchorOrRequestsOne) {
  open();
  send(*trainer_, run_.step(1));
  EXPECT_EQ(relay_all(), 1U);
  const auto late = worker("late", true);
  EXPECT_FALSE(late->follow().ok());
  ASSERT_TRUE(relay_->help().ok());
  EXPECT_TRUE(relay_->wants_anchor());
  send(*trainer_, run_.step(2));
  send(*trainer_, run_.anchor(2));
  EXPECT_EQ(relay_all(), 1U);
  const auto helped = relay_->help();
  ASSERT_TRUE(helped.ok() && *helped) << helped.status().to_string();
  EXPECT_EQ((*helped)->update.version, 2U);
  EXPECT_TRUE((*helped)->update.anchor);
  EXPECT_FALSE(relay_->wants_anchor());
  const Status followed = late->follow();
  ASSERT_TRUE(followed.ok()) << followed.to_string();
  EXPECT_TRUE(same(late->weights, run_.weights[2]));
  const auto again = relay_->help();
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(*again) << "once is enough";
  ASSERT_EQ(relay_->receivers().size(), 1U);
  EXPECT_EQ(relay_->receivers()[0].version, 2U);
}

TEST_F(AgentRelayTest, AWorkerOfAnEarlierRunGetsNoAnchor) {
  PublishedRun earlier{random_weights(1), {33, 44}};
  ASSERT_TRUE(down_->announce(run_info_to_json(earlier.info()), soon()).ok());
  const auto old = worker("old", true);
  send(*down_, earlier.step(1));
  EXPECT_EQ(old->follow().code(), StatusCode::kWrongBase);
  down_.reset();  // the worker stays, and sends reports
  down_ = std::move(*make_host_shm_sender(shm_));
  open();
  send(*trainer_, run_.step(1));
  EXPECT_EQ(relay_all(), 1U);
  ASSERT_TRUE(old->receiver->report().ok());
  ASSERT_EQ(down_->receivers()->size(), 1U);
  const auto helped = relay_->help();
  ASSERT_TRUE(helped.ok()) << helped.status().to_string();
  EXPECT_FALSE(relay_->wants_anchor());
}

TEST_F(AgentRelayTest, AnAnchorFromWhichNoStepLeadsOnIsNotCarried) {
  shm_.versions = options_.versions = 2;
  down_.reset();
  down_ = std::move(*make_host_shm_sender(shm_));
  send(*trainer_, run_.step(1));
  send(*trainer_, run_.anchor(1));
  for (std::uint64_t version = 2; version <= 6; ++version) send(*trainer_, run_.step(version));
  open();
  EXPECT_EQ(relay_all(), 2U) << "what the road below would drop at once is not fetched";
  const auto late = worker("late", true);
  const auto helped = relay_->help();
  ASSERT_TRUE(helped.ok());
  EXPECT_FALSE(*helped);
  EXPECT_TRUE(relay_->wants_anchor());
}

TEST_F(AgentRelayTest, AStartedAgainAgentLetsWorkersGoOn) {
  open();
  send(*trainer_, run_.step(1));
  EXPECT_EQ(relay_all(), 1U);
  const auto steady = worker("steady");
  ASSERT_TRUE(steady->follow().ok());
  relay_.reset();
  down_.reset();  // as with a dead agent: the next start removes the segments
  send(*trainer_, run_.step(2));
  send(*trainer_, run_.step(3));
  ASSERT_TRUE(steady->follow().ok()) << "nothing is there, and that is no failure";
  down_ = std::move(*make_host_shm_sender(shm_));
  open();
  EXPECT_EQ(relay_all(), 3U);
  const Status followed = steady->follow();
  ASSERT_TRUE(followed.ok()) << followed.to_string();
  EXPECT_TRUE(same(steady->weights, run_.weights[3]));
}

// Counts the callers that hold the budget at the same time.
TEST(MemoryBudgetTest, NoMoreThanTheCapAndOneAlways) {
  MemoryBudget budget(100);
  std::atomic<std::uint64_t> taken{0}, most{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 200; ++n) {
        const std::uint64_t bytes = i == 0 ? 150 : 40;
        const MemoryBudget::Hold hold(budget, bytes);
        const std::uint64_t now_taken = taken += bytes;
        std::uint64_t before = most;
        while (before < now_taken && !most.compare_exchange_weak(before, now_taken)) {
        }
        if (i == 0) {
          EXPECT_EQ(now_taken, 150U) << "what is larger than the cap goes alone";
        }
        taken -= bytes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 150U);
}

TEST(ChangedTensors, AreWrittenWholeAndOnlyThey) {
  const TempDir dir(TempDir::Where::kMemory);
  PublishedRun run{random_weights(1)};
  write_checkpoint(dir.file("model"), run.weights[0]);
  auto target = make_checkpoint_target(posix_file_system(), dir.file("model"), 1);
  ASSERT_TRUE(target.ok());
  Publication step = run.step(1);
  std::vector<FetchedVersion> chain;
  chain.push_back(step.fetched());
  auto staged = (*target)->stage(std::move(chain));
  ASSERT_TRUE(staged.ok()) << staged.status().to_string();
  const Result<CommitReport> committed = (*staged)->commit();
  ASSERT_TRUE(committed.ok()) << committed.status().to_string();
  std::set<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < run.layout.size(); ++i) {
    const std::string& name = run.layout[i].name;
    if (run.weights[0].at(name).bytes != run.weights[1].at(name).bytes) expected.insert(i);
  }
  EXPECT_EQ(committed->tensors, expected);
  std::set<std::uint32_t> some = expected;
  if (some.size() == run.layout.size()) some.erase(some.begin());
  const auto written =
      write_changed_tensors(posix_file_system(), dir.file("model"), some, dir.file("changed"));
  ASSERT_TRUE(written.ok() && *written) << written.status().to_string();
  const auto back = Checkpoint::open(posix_file_system(), dir.file("changed"));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  ASSERT_EQ(back->layout().size(), some.size());
  for (std::size_t i = 0; i < back->layout().size(); ++i) {
    const TensorView view = back->tensor(i);
    const auto& bytes = run.weights[1].at(view.spec->name).bytes;
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), view.data));
  }
  EXPECT_TRUE(check_same_shapes(posix_file_system(), dir.file("model"), run.layout).ok());
  EXPECT_EQ(check_same_shapes(posix_file_system(), dir.file("changed"), run.layout).code(),
            StatusCode::kWrongLayout);
}

// Holds tensors first, first + step, ...
struct Part {
  Part(const HostShmOptions& shm, const std::string& id, const Weights& start, std::size_t first,
       std::size_t step)
      : weights(start), layout(layout_of(start)), road(std::move(*make_host_shm_receiver(shm))) {
    data = pointers(weights);
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (i % step != first) data[i] = nullptr;
    }
    target = std::move(*make_memory_target(layout, data, VersionId{}, 1));
    ReceiverOptions options;
    options.id = id;
    options.fetch_deadline = 300ms;
    auto opened = Receiver::open(options, *road, *target, soon());
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    receiver = std::move(*opened);
  }
  Status follow() const {
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool news, receiver->stage(now()));
      if (!news) return {};
      DRIFTLESS_RETURN_IF_ERROR(receiver->commit().status());
    }
  }
  [[nodiscard]] bool holds(const Weights& expected) const {
    std::size_t i = 0;
    for (const auto& [name, tensor] : weights) {
      if (data[i++] != nullptr && tensor.bytes != expected.at(name).bytes) return false;
    }
    return true;
  }
  Weights weights;
  WeightLayout layout;
  std::vector<std::byte*> data;
  std::unique_ptr<ReceiveRoad> road;
  std::unique_ptr<WeightTarget> target;
  std::unique_ptr<Receiver> receiver;
};

// Workers that hold some of the tensors: the agent fetches what they need together. A worker that
// joins later and needs more requests an anchor, and then follows.
class AgentRelayNeeds : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Workers, AgentRelayNeeds, ::testing::Values(2, 0));
TEST_P(AgentRelayNeeds, OnlyWhatTheWorkersNeedIsFetched) {
  const Weights base = random_weights(1, 512);
  LoopbackHub hub({}, 1);
  PublisherOptions options = quick_options();
  options.buffer_bytes = 1 << 20;
  options.encoding = Encoding::kDeltasZstd;
  Trainer trainer(hub, 1, options, base);
  expect_ok(trainer.opened());
  const TempDir dir(TempDir::Where::kMemory);
  HostShmOptions shm;
  shm.dir = dir.path();
  const auto up = hub.receiver();
  const auto down = make_host_shm_sender(shm);
  ASSERT_TRUE(down.ok());
  RelayOptions relaying;
  relaying.workers = GetParam();
  relaying.versions = 2;
  const auto relay = Relay::open(relaying, *up, **down, soon());
  ASSERT_TRUE(relay.ok()) << relay.status().to_string();
  const Part first(shm, "first", base, 1, 7), second(shm, "second", base, 2, 7);
  EXPECT_EQ((*relay)->needs(), "");
  Weights weights = base;
  for (std::uint64_t version = 1; version <= 5; ++version) {
    weights = version == 4 ? random_weights(9, 512) : changed_weights(weights, version, 0.05);
    expect_ok(trainer.publish(weights));
    const auto report = (*relay)->follow(soon());
    ASSERT_TRUE(report.ok() && *report) << report.status().to_string();
    if (relaying.workers == 0 && version <= 2) {  // more workers may join
      EXPECT_GE((*report)->update.wire_bytes, trainer.report().wire_bytes);
      for (const Part* const worker : {&first, &second}) {
        ASSERT_EQ(worker->follow().to_string(), "ok");
      }
      continue;
    }
    // The version is small: bytes between two needed ranges are fetched, too.
    EXPECT_LT((*report)->update.needed_bytes, trainer.report().wire_bytes / 10);
    EXPECT_LT((*report)->update.wire_bytes, trainer.report().wire_bytes * 3 / 5);
    EXPECT_LE((*report)->update.needed_bytes, (*report)->update.wire_bytes);
    for (const Part* const worker : {&first, &second}) {
      ASSERT_EQ(worker->follow().to_string(), "ok");
      EXPECT_TRUE(worker->holds(weights));
    }
  }
  const auto parsed = parse_needs((*relay)->needs(), "the agent");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->tensors[0].kind, TensorNeed::Kind::kNothing);
  EXPECT_EQ(parsed->tensors[1].kind, TensorNeed::Kind::kAll);

  const Part late(shm, "late", base, 0, 1);
  EXPECT_EQ(late.follow().code(), StatusCode::kMismatch);
  EXPECT_EQ(late.follow().code(), StatusCode::kMismatch);
  EXPECT_EQ(late.follow().code(), StatusCode::kMismatch);
  const auto nothing = (*relay)->help();
  ASSERT_TRUE(nothing.ok()) << nothing.status().to_string();
  EXPECT_TRUE((*relay)->wants_anchor());
  expect_ok(trainer.each([&](unsigned rank) { return trainer.rank(rank).publish_anchor(); }));
  const auto anchor = (*relay)->help();
  ASSERT_TRUE(anchor.ok() && *anchor) << anchor.status().to_string();
  EXPECT_EQ(late.follow().to_string(), "ok");
  EXPECT_TRUE(late.holds(weights));
}

}  // namespace
}  // namespace driftless::testing
