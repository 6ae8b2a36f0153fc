// SPDX-License-Identifier: Apache-2.0
// Two publishers on one directory: at any file-system call of the first, an operator who believes
// it dead removes its lock file, and the second takes the directory over. The directory then holds
// one chain of versions, and the first publisher is fenced and reports that.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "collectives/shared_fs/shared_fs_road.h"
#include "plugin/publish/publisher.h"
#include "plugin/receive/receiver.h"
#include "support/loopback_road.h"
#include "support/stalling_file_system.h"
#include "support/temp_dir.h"
#include "support/weight_source.h"
#include "support/weights.h"

namespace driftless::testing {
namespace {

using namespace std::chrono_literals;

// A trainer with several ranks over one directory.
class DirectoryTrainer {
 public:
  DirectoryTrainer(FileSystem& fs, const std::string& dir, unsigned ranks, const Weights& base)
      : mail_({}, ranks), ranks_(ranks) {
    SharedFsOptions road;
    road.dir = dir;
    road.poll_first = 1ms;
    road.poll_longest = 2ms;
    road.lock_wait = 0ms;
    PublisherOptions options;
    options.threads = 1;
    options.deadline = 5s;
    options.background = false;
    for (unsigned rank = 0; rank < ranks; ++rank) {
      groups_.push_back(mail_.group(rank));
      auto sender = make_shared_fs_sender(fs, road, rank, ranks);
      opened_ = sender.status();
      if (!opened_.ok()) return;
      roads_.push_back(std::move(*sender));
      histories_.push_back(std::move(*make_shared_fs_receiver(posix_file_system(), road)));
    }
    publishers_.resize(ranks);
    opened_ = each([&](unsigned rank) {
      MemorySource source(base, rank, ranks_, 2);
      auto made =
          Publisher::open(options, *groups_[rank], *roads_[rank], histories_[rank].get(), source);
      if (made.ok()) publishers_[rank] = std::move(*made);
      return made.status();
    });
  }

  [[nodiscard]] const Status& opened() const { return opened_; }
  [[nodiscard]] Publisher& publisher() { return *publishers_[0]; }

  // Publishes, and returns the leader's status.
  Status publish(const Weights& weights) {
    return each([&](unsigned rank) {
      MemorySource source(weights, rank, ranks_, 2);
      return publishers_[rank]->publish(source).status();
    });
  }

 private:
  Status each(const std::function<Status(unsigned)>& work) {
    std::vector<Status> statuses(ranks_);
    std::vector<std::thread> threads;
    for (unsigned rank = 1; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = work(rank); });
    }
    statuses[0] = work(0);
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) {
      EXPECT_EQ(status.ok(), statuses[0].ok()) << status.to_string();
    }
    return statuses[0];
  }

  LoopbackHub mail_;
  unsigned ranks_;
  Status opened_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<SendRoad>> roads_;
  std::vector<std::unique_ptr<ReceiveRoad>> histories_;
  std::vector<std::unique_ptr<Publisher>> publishers_;
};

class Fence : public ::testing::TestWithParam<unsigned> {
 protected:
  // The state of a new rollout that follows the directory from the base.
  Result<TargetState> follow(const Weights& expected) {
    SharedFsOptions options;
    options.dir = dir();
    options.poll_first = 1ms;
    auto road = make_shared_fs_receiver(posix_file_system(), options);
    std::vector<TensorSpec> specs;
    for (const auto& [name, tensor] : base_) {
      specs.push_back(*TensorSpec::make(name, tensor.dtype, tensor.shape));
    }
    const WeightLayout layout = *WeightLayout::make(specs);
    Weights held = base_;
    std::vector<std::byte*> data;
    for (auto& [name, tensor] : held) data.push_back(tensor.bytes.data());
    auto target = make_memory_target(layout, data, VersionId{}, 1);
    ReceiverOptions quick;
    quick.fetch_deadline = 200ms;
    auto receiver = Receiver::open(quick, **road, **target, Deadline::after(1s));
    if (!receiver.ok()) return receiver.status();
    for (;;) {
      DRIFTLESS_ASSIGN_OR_RETURN(const bool staged, (*receiver)->stage(Deadline::after(5ms)));
      if (!staged) break;
      DRIFTLESS_RETURN_IF_ERROR((*receiver)->commit().status());
    }
    for (const auto& [name, tensor] : expected) {
      if (held.at(name).bytes == tensor.bytes) continue;
      return error(StatusCode::kMismatch, "tensor ", name, " is another publisher's");
    }
    return (*target)->state();
  }

  void remove_lock() const { std::filesystem::remove(dir() + "/.driftless-publisher.lock"); }
  [[nodiscard]] std::string dir() const { return temp_.file("road"); }

  // The takeover happens before call number `at` of the first trainer's second version. False: that
  // version takes fewer calls.
  bool play(std::uint64_t at) {
    std::filesystem::remove_all(dir());
    StallingFileSystem fs;
    auto first = std::make_unique<DirectoryTrainer>(fs, dir(), GetParam(), base_);
    EXPECT_EQ(first->opened().to_string(), "ok");
    EXPECT_EQ(first->publish(one_).to_string(), "ok");
    std::unique_ptr<DirectoryTrainer> second;
    std::uint64_t found = 0;
    fs.plan(at, [&] {
      remove_lock();
      second = std::make_unique<DirectoryTrainer>(posix_file_system(), dir(), GetParam(), base_);
      ASSERT_EQ(second->opened().to_string(), "ok");
      found = second->publisher().version().version;
      ASSERT_EQ(second->publish(theirs_).to_string(), "ok") << "call " << at;
    });
    const Status ours = first->publish(ours_);
    if (second == nullptr) return false;
    EXPECT_EQ(ours.ok(), found == 2) << "call " << at << ": " << ours.to_string();
    const Status fenced = first->publish(ours_);
    EXPECT_EQ(fenced.code(), StatusCode::kWrongRun) << "call " << at << ": " << fenced.to_string();
    const Result<TargetState> there = follow(theirs_);
    EXPECT_TRUE(there.ok()) << "call " << at << ": " << there.status().to_string();
    first.reset();
    EXPECT_EQ(second->publish(base_).to_string(), "ok") << "call " << at;
    EXPECT_TRUE(follow(base_).ok()) << "call " << at;
    return true;
  }

  TempDir temp_{TempDir::Where::kMemory};
  Weights base_ = random_weights(1, 8);
  Weights one_ = changed_weights(base_, 1, 0.02);
  Weights ours_ = changed_weights(one_, 2, 0.02);
  Weights theirs_ = changed_weights(one_, 3, 0.02);
};

TEST_P(Fence, ATakeoverAtAnyCallLeavesOneChain) {
  std::uint64_t calls = 0;
  while (play(calls) && !HasFailure()) ++calls;
  EXPECT_GT(calls, 20U) << "the takeovers did not reach the work";
}

// While a trainer opens an empty directory and stalls, another trainer takes the directory.
TEST_P(Fence, ATakeoverAtAnyCallOfAnOpeningLeavesTheOthersRun) {
  std::uint64_t at = 0;
  for (; !HasFailure(); ++at) {
    std::filesystem::remove_all(dir());
    StallingFileSystem fs;
    std::unique_ptr<DirectoryTrainer> second;
    fs.plan(at, [&] {
      remove_lock();
      second = std::make_unique<DirectoryTrainer>(posix_file_system(), dir(), GetParam(), base_);
      if (second->opened().ok()) {
        ASSERT_EQ(second->publish(theirs_).to_string(), "ok") << "call " << at;
      }
    });
    const DirectoryTrainer first(fs, dir(), GetParam(), one_);
    ASSERT_NE(second, nullptr) << "call " << at;
    if (second->opened().code() == StatusCode::kWrongBase)
      break;  // the first trainer has announced its run
    EXPECT_FALSE(first.opened().ok()) << "call " << at;
    const Result<TargetState> there = follow(theirs_);
    EXPECT_TRUE(there.ok()) << "call " << at << ": " << there.status().to_string();
  }
  EXPECT_GT(at, 5U) << "the takeovers did not reach the work";
}

TEST_P(Fence, ALockFileThatWasRemovedFencesAndTheErrorNamesBothRuns) {
  DirectoryTrainer first(posix_file_system(), dir(), GetParam(), base_);
  ASSERT_EQ(first.publish(one_).to_string(), "ok");
  const std::string run = to_hex(first.publisher().version().run);
  DirectoryTrainer refused(posix_file_system(), dir(), GetParam(), base_);
  EXPECT_EQ(refused.opened().code(), StatusCode::kBusy);
  EXPECT_NE(refused.opened().message().find(concat("process ", ::getpid())), std::string::npos);
  // An operator empties the directory for another run.
  for (const auto& entry : std::filesystem::directory_iterator(dir())) {
    std::filesystem::remove_all(entry.path());
  }
  DirectoryTrainer second(posix_file_system(), dir(), GetParam(), base_);
  ASSERT_EQ(second.opened().to_string(), "ok");
  const Status fenced = first.publish(ours_);
  EXPECT_EQ(fenced.code(), StatusCode::kWrongRun) << fenced.to_string();
  EXPECT_NE(fenced.message().find(run), std::string::npos) << fenced.to_string();
  EXPECT_NE(fenced.message().find(to_hex(second.publisher().version().run)), std::string::npos)
      << fenced.to_string();
  EXPECT_EQ(first.publish(ours_).to_string(), fenced.to_string()) << "for good";
  ASSERT_EQ(second.publish(theirs_).to_string(), "ok");
  EXPECT_TRUE(follow(theirs_).ok());
}

// An operator removes the newest version, and the trainer restarts: a receiver that compares
// numbers must not take the next version for the one that it has.
TEST_P(Fence, ANumberThatWasVisibleIsNotUsedAgain) {
  {
    DirectoryTrainer first(posix_file_system(), dir(), GetParam(), base_);
    ASSERT_EQ(first.publish(one_).to_string(), "ok");
    ASSERT_EQ(first.publish(ours_).to_string(), "ok");
  }
  std::filesystem::remove_all(dir() + "/weight_v000002");
  DirectoryTrainer second(posix_file_system(), dir(), GetParam(), base_);
  ASSERT_EQ(second.opened().to_string(), "ok");
  EXPECT_EQ(second.publisher().version().version, 1U);
  EXPECT_NE(second.publisher().notes().back().find("the next is version 3, in full"),
            std::string::npos)
      << second.publisher().notes().back();
  ASSERT_EQ(second.publish(theirs_).to_string(), "ok");
  EXPECT_EQ(second.publisher().version().version, 3U);
  EXPECT_FALSE(std::filesystem::exists(dir() + "/weight_v000002"));
  const Result<TargetState> there = follow(theirs_);
  ASSERT_TRUE(there.ok()) << there.status().to_string();
  EXPECT_EQ(there->id.version, 3U);
  ASSERT_EQ(second.publish(ours_).to_string(), "ok") << "a delta again";
  EXPECT_TRUE(follow(ours_).ok());
}

TEST_P(Fence, ARunWithoutItsRecordOfUsedNumbersIsNotResumed) {
  {
    DirectoryTrainer first(posix_file_system(), dir(), GetParam(), base_);
    ASSERT_EQ(first.publish(one_).to_string(), "ok");
  }
  std::filesystem::remove(dir() + "/.used_v000001");
  const DirectoryTrainer second(posix_file_system(), dir(), GetParam(), base_);
  EXPECT_EQ(second.opened().code(), StatusCode::kCorrupt) << second.opened().to_string();
  EXPECT_NE(second.opened().message().find(".used_v000000"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Fence, ::testing::Values(1U, 2U));

// Stops the process in the middle of a version.
class StoppingSource final : public WeightSource {
 public:
  explicit StoppingSource(const Weights& weights) : source_(weights) {}
  [[nodiscard]] std::span<const TensorSpec> tensors() const override { return source_.tensors(); }
  [[nodiscard]] Status visit(
      const std::function<Status(std::span<const OfferedTensor>)>& use) override {
    DRIFTLESS_RETURN_IF_ERROR(source_.visit(use));
    ::raise(SIGSTOP);
    return {};
  }

 private:
  MemorySource source_;
};

class StoppedProcess : public Fence {};
INSTANTIATE_TEST_SUITE_P(One, StoppedProcess, ::testing::Values(1U));

TEST_P(StoppedProcess, IsFencedWhenItGoesOn) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    DirectoryTrainer stopped(posix_file_system(), dir(), 1, base_);
    if (!stopped.opened().ok() || !stopped.publish(one_).ok()) ::_exit(100);
    StoppingSource source(ours_);
    ::_exit(static_cast<int>(stopped.publisher().publish(source).status().code()));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status)) << status;
  remove_lock();
  DirectoryTrainer second(posix_file_system(), dir(), 1, base_);
  EXPECT_EQ(second.opened().to_string(), "ok");
  EXPECT_EQ(second.publish(theirs_).to_string(), "ok");
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(StatusCode::kWrongRun));
  EXPECT_TRUE(follow(theirs_).ok());
}

}  // namespace
}  // namespace driftless::testing
