// SPDX-License-Identifier: Apache-2.0
// An agent whose workers hold slices of the tensors.
#include <gtest/gtest.h>

#include "collectives/host_shm/host_shm_road.h"
#include "plugin/agent/relay.h"
#include "support/loopback_job.h"
#include "support/published_run.h"
#include "support/sharded_weights.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

Deadline in_time() { return Deadline::after(10s); }
Deadline at_once() { return Deadline::after(0ms); }

Weights matrices(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  weights["a.up"] = random_tensor(DType::kBF16, {64, 256}, random);
  weights["b.down"] = random_tensor(DType::kBF16, {128, 96}, random);
  weights["c.scale"] = random_tensor(DType::kI64, {8, 2}, random);
  return weights;
}

// Rank `rank` of two holds rows of the tensors, in parameters as an engine has them; the last
// tensor is whole.
struct SlicedWorker {
  SlicedWorker(const HostShmOptions& shm, const Weights& base, std::uint32_t rank,
               bool last = false)
      : held(layout_of(base), rank), road(std::move(*make_host_shm_receiver(shm))) {
    std::mt19937_64 random(rank);
    const WeightLayout layout = layout_of(base);
    for (std::uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
      const std::uint64_t rows = layout[tensor].shape[0] / 2;
      if (!last) held.add(tensor, rows * rank, rows, 0, layout[tensor].shape[1], random);
    }
    if (last) held.add(2, 0, layout[2].shape[0], 0, layout[2].shape[1], random);
    MappedOptions options;
    options.initial = VersionId{};
    options.initial_digest = digest_of(base);
    held.load(base);
    held.open(options);
    ReceiverOptions receiving;
    receiving.id = concat("rank", rank);
    receiving.fetch_deadline = 5s;
    auto opened = Receiver::open(receiving, *road, held.target(), in_time());
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    receiver = std::move(*opened);
  }
  Status follow() {
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool news, receiver->stage(at_once()));
      if (!news) return {};
      DRIFTLESS_RETURN_IF_ERROR(receiver->commit().status());
    }
  }
  RankWeights held;
  std::unique_ptr<ReceiveRoad> road;
  std::unique_ptr<Receiver> receiver;
};

class AgentSlicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    shm_.dir = dir_.path();
    options_.fetch_deadline = 5s;
    options_.workers = 2;
    ASSERT_TRUE(trainer_->announce(run_info_to_json(run_.info()), in_time()).ok());
    down_ = std::move(*make_host_shm_sender(shm_));
    auto relay = Relay::open(options_, *up_, *down_, in_time());
    ASSERT_TRUE(relay.ok()) << relay.status().to_string();
    relay_ = std::move(*relay);
  }
  void start_workers() {
    for (const std::uint32_t rank : {0U, 1U}) {
      workers_.push_back(std::make_unique<SlicedWorker>(shm_, run_.weights[0], rank));
    }
    ASSERT_TRUE(relay_->help().ok());
  }
  Publication step(std::uint64_t version, Encoding encoding = Encoding::kDeltasZstd) {
    while (run_.weights.size() <= version) {
      run_.weights.push_back(stepped_weights(run_.weights.back(), run_.weights.size()));
    }
    Publication made = run_.step(version, DirectoryLayout::kFrames, encoding);
    for (ManifestFile& file : made.manifest.files) {
      file.table = frame_table_hash(made.parts.at(file.name));
    }
    return made;
  }
  DeliveryReport relay_one() {
    const auto report = relay_->follow(in_time());
    EXPECT_TRUE(report.ok() && *report) << report.status().to_string();
    return report.ok() && *report ? **report : DeliveryReport();
  }
  Encoding handed_over(std::uint64_t version) {
    const auto text = (*make_host_shm_receiver(shm_))
                          ->fetch_manifest({version, PublicationKind::kVersion}, in_time());
    return parse_manifest(*text, "manifest")->encoding;
  }
  // The shares of all ranks add up to the trainer's tensors.
  void expect_holds(std::uint64_t version) {
    std::map<std::uint32_t, Digest> sums;
    for (const auto& worker : workers_) {
      EXPECT_EQ(worker->receiver->state().id.version, version);
      EXPECT_TRUE(worker->held.target().sweep().ok());
      for (const TensorShare& share : worker->held.target().tracked().tensors) {
        sums[share.tensor] += share.digest;
      }
    }
    for (std::uint32_t tensor = 0; tensor < run_.layout.size(); ++tensor) {
      const std::string& name = run_.layout[tensor].name;
      EXPECT_EQ(sums[tensor], digest_of({{name, run_.weights[version].at(name)}})) << name;
    }
  }

  TempDir dir_{TempDir::Where::kMemory};
  HostShmOptions shm_;
  PublishedRun run_{matrices(1)};
  LoopbackHub hub_{{}, 1};
  std::unique_ptr<SendRoad> trainer_ = hub_.sender(0);
  std::unique_ptr<ReceiveRoad> up_ = hub_.receiver();
  std::unique_ptr<SendRoad> down_;
  RelayOptions options_;
  std::unique_ptr<Relay> relay_;
  std::vector<std::unique_ptr<SlicedWorker>> workers_;
};

TEST_F(AgentSlicesTest, WorkersWithSlicesFollow) {
  start_workers();
  for (std::uint64_t version = 1; version <= 4; ++version) {
    send(*trainer_, step(version));
    EXPECT_TRUE(relay_one().update.notes.empty());
    if (version == 2) continue;  // folded with the next version
    for (const auto& worker : workers_) {
      const Status followed = worker->follow();
      ASSERT_TRUE(followed.ok()) << followed.to_string();
    }
    expect_holds(version);
  }
}

TEST_F(AgentSlicesTest, AWorkerThatIsStartedAgainFollowsFromTheBase) {
  start_workers();
  send(*trainer_, step(1));
  relay_one();
  for (const auto& worker : workers_) ASSERT_TRUE(worker->follow().ok());
  workers_[1].reset();
  workers_[1] = std::make_unique<SlicedWorker>(shm_, run_.weights[0], 1);  // from the base
  send(*trainer_, step(2));
  relay_one();
  for (const auto& worker : workers_) {
    const Status followed = worker->follow();
    ASSERT_TRUE(followed.ok()) << followed.to_string();
  }
  expect_holds(2);
}

// The workers hold the old values of everything that they need, and the agent fetches only that.
TEST_F(AgentSlicesTest, WorkersWithWholeTensorsTakeCompact) {
  for (const std::uint32_t rank : {0U, 1U}) {
    workers_.push_back(std::make_unique<SlicedWorker>(shm_, run_.weights[0], rank, true));
  }
  ASSERT_TRUE(relay_->help().ok());
  for (std::uint64_t version = 1; version <= 2; ++version) {
    send(*trainer_, step(version, Encoding::kCompact));
    const DeliveryReport report = relay_one();
    EXPECT_TRUE(report.update.notes.empty());
    EXPECT_EQ(handed_over(version), Encoding::kCompact);
    for (const auto& worker : workers_) ASSERT_TRUE(worker->follow().ok());
    ASSERT_TRUE(relay_->help().ok());
    EXPECT_FALSE(relay_->wants_anchor());
  }
}

// A publisher without a snapshot sends a tensor whole, or the changes that capture() recorded.
TEST(AgentOfALivePublisher, WorkersWithSlicesTakeWholeTensors) {
  for (const Encoding encoding : {Encoding::kDeltas, Encoding::kDeltasZstd}) {
    const Weights base = matrices(1);
    LoopbackHub hub({}, 1);
    PublisherOptions publishing = quick_options();
    publishing.keep_snapshot = false;
    publishing.encoding = encoding;
    publishing.full_above_density = 1;
    Trainer trainer(hub, 1, publishing, base);
    expect_ok(trainer.opened());
    TempDir dir(TempDir::Where::kMemory);
    HostShmOptions shm;
    shm.dir = dir.path();
    const auto up = hub.receiver();
    const auto down = std::move(*make_host_shm_sender(shm));
    RelayOptions options;
    options.fetch_deadline = 1s;
    options.workers = 2;
    const auto relay = std::move(*Relay::open(options, *up, *down, in_time()));
    SlicedWorker first(shm, base, 0), second(shm, base, 1);
    ASSERT_TRUE(relay->help().ok());
    Weights weights = base;
    for (const std::string unseen : {"nothing", "b.down", "not written", "a.up", "nothing"}) {
      SCOPED_TRACE(concat(unseen, " in ", info(encoding).name));
      const Weights next = stepped_weights(weights, trainer.rank(0).version().version + 5);
      if (unseen == "not written") {
        MemorySource after = trainer.offer(next, 0);
        const Publisher::NewTensor value{1, after.bytes(1).data(), after.tensors()[1].dtype};
        ASSERT_TRUE(trainer.rank(0).capture({&value, 1}).ok());
      } else {
        weights = next;
        trainer.step(weights, unseen);
      }
      expect_ok(trainer.publish_live());
      EXPECT_EQ(trainer.report().encoding, encoding);
      const auto report = relay->follow(in_time());
      ASSERT_TRUE(report.ok() && *report) << report.status().to_string();
      EXPECT_TRUE((*report)->update.notes.empty());
      std::map<std::uint32_t, Digest> sums;
      for (SlicedWorker* const worker : {&first, &second}) {
        ASSERT_EQ(worker->follow().to_string(), "ok");
        EXPECT_TRUE(worker->held.target().sweep().ok());
        for (const TensorShare& share : worker->held.target().tracked().tensors) {
          sums[share.tensor] += share.digest;
        }
      }
      std::uint32_t number = 0;
      for (const auto& [name, tensor] : weights) {
        EXPECT_EQ(sums[number++], digest_of({{name, tensor}})) << name;
      }
    }
  }
}

}  // namespace
}  // namespace driftless::testing
