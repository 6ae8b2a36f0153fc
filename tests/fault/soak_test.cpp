// SPDX-License-Identifier: Apache-2.0
// Hundreds of versions with faults on both sides, while receivers come, leave and fall behind. At
// every commit a receiver's bytes must be those of the version that it claims to hold.
//
// Seeded. DRIFTLESS_SOAK_VERSIONS makes the test longer, DRIFTLESS_SOAK_SEED chooses another seed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <thread>

#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/faulty_receive_road.h"
#include "support/faulty_road.h"
#include "support/loopback_road.h"
#include "support/temp_dir.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless {
namespace {

using namespace std::chrono_literals;
using testing::FaultyReceiveRoad;
using testing::FaultyRoad;
using testing::MemorySource;
using testing::RoadFault;
using testing::Weights;

constexpr unsigned kSoakRanks = 2;
constexpr unsigned kReceivers = 4;

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

Hash128 hash_of(const Weights& weights) {
  std::vector<std::byte> all;
  for (const auto& [name, tensor] : weights) {
    all.insert(all.end(), tensor.bytes.begin(), tensor.bytes.end());
  }
  return xxh3_128(all);
}

// The hash of the weights of each version; it is independent of the digest.
class Record {
 public:
  void add(std::uint64_t version, const Hash128& hash) {
    const std::scoped_lock lock(mutex_);
    hashes_[version] = hash;
  }
  // A receiver may commit before the trainer's publish() returns: waits a little.
  [[nodiscard]] bool is(std::uint64_t version, const Hash128& hash) {
    for (int i = 0; i < 2000; ++i) {
      {
        const std::scoped_lock lock(mutex_);
        const auto found = hashes_.find(version);
        if (found != hashes_.end()) return found->second == hash;
      }
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, Hash128> hashes_;
};

using MakeReceiver = std::function<std::unique_ptr<ReceiveRoad>()>;

// One rollout: it follows, sleeps, loses its state and joins again.
class SoakReceiver {
 public:
  SoakReceiver(MakeReceiver make, unsigned number, std::uint64_t seed, const Weights& base,
               Record& record)
      : make_(std::move(make)), number_(number), random_(seed), base_(base), record_(record) {}

  void run(const std::atomic<std::uint64_t>& last) {
    while (version_ < last || last == 0) {
      if (!receiver_ || random_() % 60 == 0) join();
      if (!receiver_) continue;
      if (random_() % 40 == 0) std::this_thread::sleep_for(30ms);  // falls behind
      step();
    }
  }

  std::uint64_t wrong = 0, commits = 0, anchors = 0, failures = 0, joins = 0;
  std::uint64_t version_ = 0;

 private:
  void join() {
    receiver_.reset();
    ++joins;
    version_ = 0;
    held_ = base_;
    const bool with_base = random_() % 2 == 0;
    road_ = std::make_unique<FaultyReceiveRoad>(make_(), random_(), 0.02);
    std::vector<TensorSpec> specs;
    std::vector<std::byte*> data;
    for (auto& [name, tensor] : held_) {
      specs.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
      data.push_back(tensor.bytes.data());
    }
    layout_ = *WeightLayout::make(specs);
    auto target = make_memory_target(
        layout_, data, with_base ? std::optional<VersionId>(VersionId{}) : std::nullopt, 1);
    ASSERT_TRUE(target.ok()) << target.status().to_string();
    target_ = std::move(*target);
    ReceiverOptions options;
    options.id = concat("receiver-", number_);
    options.fetch_deadline = 2s;
    options.threads = 1;
    options.pause = [this]() -> Status {
      return random_() % 50 == 0 ? error(StatusCode::kIo, "injected failure of pause") : Status();
    };
    auto opened = Receiver::open(options, *road_, *target_, Deadline::after(2s));
    if (opened.ok()) receiver_ = std::move(*opened);
  }

  void step() {
    const auto staged = receiver_->stage(Deadline::after(50ms));
    if (!staged.ok()) {
      ++failures;
      if (std::getenv("DRIFTLESS_SOAK_VERBOSE") != nullptr) {
        std::printf("receiver %u at %llu: %s\n", number_, static_cast<unsigned long long>(version_),
                    staged.status().to_string().c_str());
      }
      return;
    }
    if (!*staged) return;
    const auto done = receiver_->commit();
    if (!done.ok()) {
      ++failures;
      // After any failure the target holds a version, or reports that it holds none.
      const TargetState state = target_->state();
      if (state.valid && state.id.version > 0) {
        wrong += record_.is(state.id.version, hash_of(held_)) ? 0 : 1;
      }
      return;
    }
    ++commits;
    anchors += done->anchor ? 1 : 0;
    version_ = done->version;
    wrong += record_.is(version_, hash_of(held_)) ? 0 : 1;
  }

  MakeReceiver make_;
  unsigned number_;
  std::mt19937_64 random_;
  const Weights& base_;
  Record& record_;
  WeightLayout layout_;
  Weights held_;
  std::unique_ptr<ReceiveRoad> road_;
  std::unique_ptr<WeightTarget> target_;
  std::unique_ptr<Receiver> receiver_;
};

struct SoakRoads {
  std::vector<std::unique_ptr<FaultyRoad>> senders;
  std::vector<std::unique_ptr<ReceiveRoad>> histories;
  std::vector<std::unique_ptr<Group>> groups;
  MakeReceiver receiver;
};

// The trainer: two ranks, a fault in about every tenth version, and a restart now and then.
class SoakTrainer {
 public:
  SoakTrainer(SoakRoads& roads, const PublisherOptions& options, const Weights& base,
              std::uint64_t seed)
      : roads_(roads), options_(options), base_(base), weights_(base), random_(seed) {}

  void open() {
    publishers_.clear();
    publishers_.resize(kSoakRanks);
    each([&](unsigned rank) -> Status {
      MemorySource source(base_, rank, kSoakRanks, 3);
      auto opened = Publisher::open(options_, *roads_.groups[rank], *roads_.senders[rank],
                                    roads_.histories[rank].get(), source);
      EXPECT_TRUE(opened.ok()) << opened.status().to_string();
      if (opened.ok()) publishers_[rank] = std::move(*opened);
      return {};
    });
  }

  void run(std::uint64_t versions, Record& record) {
    open();
    record.add(0, hash_of(base_));
    while (version() < versions) {
      if (random_() % 100 == 0) open();  // restarted: resumes the run
      weights_ =
          testing::changed_weights(weights_, random_(), random_() % 20 == 0 ? 0.9 : 0.01, "none");
      if (random_() % 10 == 0) {
        const auto fault = static_cast<RoadFault>(1 + random_() % 8);
        const bool leaders = fault >= RoadFault::kSeal;
        roads_.senders[leaders ? 0 : random_() % kSoakRanks]->arm(fault);
      }
      // Receivers may see a version in doubt before publish() returns: record it first.
      record.add(version() + 1, hash_of(weights_));
      std::vector<Status> statuses = each([&](unsigned rank) -> Status {
        MemorySource source(weights_, rank, kSoakRanks, 3);
        return publishers_[rank]->publish(source).status();
      });
      failures += statuses[0].ok() ? 0 : 1;
      std::this_thread::sleep_for(1ms);  // a step takes some time, in which the receivers run
      // The version is in doubt or not published. Only the road can tell, so ask it before this
      // number is used for other weights.
      if (!statuses[0].ok()) publish_again(record);
    }
  }

  // A receiver that fell behind at the very end gets an anchor if it requests one.
  void help() {
    each([&](unsigned rank) { return publishers_[rank]->publish_anchor(); });
  }

  [[nodiscard]] std::uint64_t version() const { return publishers_[0]->version().version; }

  std::uint64_t failures = 0;

 private:
  // Publishes the same weights again: if the version was sealed, they become the next version, too.
  void publish_again(Record& record) {
    for (int attempt = 0; attempt < 3; ++attempt) {
      record.add(version() + 2, hash_of(weights_));
      const std::vector<Status> statuses = each([&](unsigned rank) -> Status {
        MemorySource source(weights_, rank, kSoakRanks, 3);
        return publishers_[rank]->publish(source).status();
      });
      if (statuses[0].ok()) return;
    }
    ADD_FAILURE() << "three publishes in a row failed";
  }

  std::vector<Status> each(const std::function<Status(unsigned)>& work) {
    std::vector<Status> statuses(kSoakRanks);
    std::thread other([&] { statuses[1] = work(1); });
    statuses[0] = work(0);
    other.join();
    return statuses;
  }

  SoakRoads& roads_;
  PublisherOptions options_;
  const Weights& base_;
  Weights weights_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Publisher>> publishers_;
};

void soak(SoakRoads roads, const PublisherOptions& options) {
  const std::uint64_t versions = from_environment("DRIFTLESS_SOAK_VERSIONS", 300);
  const std::uint64_t seed = from_environment("DRIFTLESS_SOAK_SEED", 1);
  const Weights base = testing::random_weights(seed, 16);
  Record record;
  SoakTrainer trainer(roads, options, base, seed);
  std::atomic<std::uint64_t> last = 0;
  std::vector<std::unique_ptr<SoakReceiver>> receivers;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kReceivers; ++i) {
    receivers.push_back(
        std::make_unique<SoakReceiver>(roads.receiver, i, seed * 100 + i, base, record));
  }
  for (unsigned i = 0; i < kReceivers; ++i) {
    threads.emplace_back([&, i] { receivers[i]->run(last); });
  }
  trainer.run(versions, record);
  last = trainer.version();
  trainer.help();
  for (std::thread& thread : threads) thread.join();
  std::uint64_t commits = 0, anchors = 0, joins = 0;
  for (const auto& receiver : receivers) {
    EXPECT_EQ(receiver->wrong, 0U);
    EXPECT_EQ(receiver->version_, trainer.version());
    commits += receiver->commits;
    anchors += receiver->anchors;
    joins += receiver->joins;
  }
  // A soak in which nothing happened proves nothing.
  EXPECT_GT(trainer.failures, versions / 50);
  EXPECT_GT(commits, versions / 4);
  EXPECT_GT(anchors, 0U);
  EXPECT_GT(joins, kReceivers);
  std::printf(
      "soak: %llu versions, %llu failed publishes, %llu commits, %llu anchors, %llu joins, "
      "0 wrong\n",
      static_cast<unsigned long long>(trainer.version()),
      static_cast<unsigned long long>(trainer.failures), static_cast<unsigned long long>(commits),
      static_cast<unsigned long long>(anchors), static_cast<unsigned long long>(joins));
}

PublisherOptions soak_options() {
  PublisherOptions options;
  options.threads = 1;
  options.buffer_bytes = 4096;
  options.first_anchor = true;
  options.anchor_every = 10;
  options.deadline = 10s;
  return options;
}

TEST(Soak, Loopback) {
  LoopbackOptions small;
  small.ring_versions = 6;  // a receiver that sleeps misses versions
  LoopbackHub hub(small, kSoakRanks);
  SoakRoads roads;
  for (unsigned rank = 0; rank < kSoakRanks; ++rank) {
    roads.senders.push_back(std::make_unique<FaultyRoad>(hub.sender(rank)));
    roads.histories.push_back(hub.receiver());
    roads.groups.push_back(hub.group(rank));
  }
  roads.receiver = [&hub] { return hub.receiver(); };
  soak(std::move(roads), soak_options());
}

TEST(Soak, SharedFiles) {
  for (const DirectoryLayout layout : {DirectoryLayout::kFlush, DirectoryLayout::kHfDelta}) {
    const testing::TempDir directory;
    SharedFsOptions files;
    files.dir = directory.file("road");
    files.poll_longest = 20ms;
    LoopbackHub hub({}, kSoakRanks);  // for the groups
    SoakRoads roads;
    for (unsigned rank = 0; rank < kSoakRanks; ++rank) {
      auto sender = make_shared_fs_sender(posix_file_system(), files, rank, kSoakRanks);
      ASSERT_TRUE(sender.ok()) << sender.status().to_string();
      roads.senders.push_back(std::make_unique<FaultyRoad>(std::move(*sender)));
      auto history = make_shared_fs_receiver(posix_file_system(), files);
      ASSERT_TRUE(history.ok()) << history.status().to_string();
      roads.histories.push_back(std::move(*history));
      roads.groups.push_back(hub.group(rank));
    }
    roads.receiver = [&files] {
      return std::move(*make_shared_fs_receiver(posix_file_system(), files));
    };
    PublisherOptions options = soak_options();
    options.layout = layout;
    options.encoding = layout == DirectoryLayout::kFlush ? Encoding::kDeltasZstd : Encoding::kXor;
    options.keep_versions = 5;
    soak(std::move(roads), options);
  }
}

}  // namespace
}  // namespace driftless
