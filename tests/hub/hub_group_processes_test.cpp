// SPDX-License-Identifier: Apache-2.0
// A group of three processes; one of them is killed or stopped at one of its first messages. The
// calls of the others end within their deadlines. A stopped process that continues is a member as
// before. If the job is started again meanwhile, the second start ignores messages of the first.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <csignal>
#include <set>

#include "support/hub_groups.h"
#include "support/watched_hub.h"

namespace driftless::testing {
namespace {

using std::chrono::milliseconds;

constexpr unsigned kRanks = 3;
constexpr int kCallMs = 400;
constexpr milliseconds kSlack{5'000};  // of a machine with other things to do
constexpr milliseconds kLongest{60'000};
constexpr int kRounds = 3;  // that succeed

enum class Fate : unsigned char { kKilled, kStopped, kStoppedAndReplaced };

struct Strike {
  unsigned victim = 0;  // rank
  int message = 0;      // its first, second, ...: sent or received
  Fate fate = Fate::kKilled;
};

// Memory that the processes of a case share. Trainers begin their steps together, as in training.
struct Shared {
  std::atomic<bool> fired = false, finish = false;
  std::array<std::atomic<std::uint64_t>, 2> step = {};  // of each start, by its rank 0
  std::array<std::atomic<int>, 2> met = {};             // rounds of each start
  std::array<std::atomic<unsigned>, 2> joined = {};
  std::atomic<unsigned> wrong = 0, late = 0;
};

// A process, after the fork.
class Member {
 public:
  Member(unsigned rank, unsigned start, const Strike& strike, Shared& shared,
         const HubOptions& options)
      : rank_(rank), start_(start), strike_(strike), shared_(shared), options_(options) {}

  void note_message() {
    if (start_ != 0 || rank_ != strike_.victim || messages_++ != strike_.message) return;
    struck_ = true;
    shared_.fired = true;
    ::raise(strike_.fate == Fate::kKilled ? SIGKILL : SIGSTOP);
  }

  int run();

 private:
  void take_part(Group& group, std::uint64_t step);
  // Checks that a call with this deadline ended in time.
  template <typename Call>
  auto timed(const Call& call) {
    const auto begin = Deadline::Clock::now();
    auto result = call(in_ms(kCallMs));
    const auto took = Deadline::Clock::now() - begin;
    if (!struck_ && took > milliseconds(kCallMs) + kSlack) ++shared_.late;
    return result;
  }

  const unsigned rank_, start_;
  const Strike strike_;
  Shared& shared_;
  const HubOptions options_;
  std::atomic<int> messages_ = 0;
  std::atomic<bool> struck_ = false;
};

int Member::run() {
  const auto note = [this](std::string_view) { note_message(); };
  const MessageWatch watch{note, note};
  const auto listen = [this, watch]() -> Result<std::unique_ptr<hub::Hub>> {
    DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<hub::Hub> hub, hub::make_tcp_hub(options_));
    return std::unique_ptr<hub::Hub>(std::make_unique<WatchedHub>(std::move(hub), watch));
  };
  const auto connect = [this, watch]() -> Result<hub::Connector> {
    DRIFTLESS_ASSIGN_OR_RETURN(hub::Connector inner, hub::make_tcp_connector(options_));
    return watched(std::move(inner), watch);
  };
  const hub::GroupPlace place{rank_, kRanks, concat("start ", start_), "group"};
  std::unique_ptr<Group> group;
  while (group == nullptr) {
    if (shared_.finish) return 0;
    auto made =
        hub::make_hub_group(std::make_shared<hub::Port>(listen, connect), place, in_ms(2'000));
    if (made.ok()) group = std::move(*made);
  }
  ++shared_.joined[start_];
  std::atomic<std::uint64_t>& step = shared_.step[start_];
  for (std::uint64_t done = 0; !shared_.finish;) {
    if (rank_ == 0) ++step;
    if (step == done) {
      std::this_thread::sleep_for(milliseconds(1));
      continue;
    }
    done = step;
    take_part(*group, done);
  }
  return 0;
}

void Member::take_part(Group& group, std::uint64_t step) {
  group.begin_epoch(step);
  const auto text = [&](unsigned of) { return concat(start_, ".", of, ".", step); };
  const auto all = timed([&](const Deadline& d) { return group.gather(text(rank_), d); });
  if (!all.ok()) return;
  for (unsigned of = 0; of < all->size(); ++of) {
    if ((*all)[of] != text(of)) ++shared_.wrong;
  }
  const auto word = timed([&](const Deadline& d) { return group.broadcast(text(0), d); });
  if (!word.ok()) return;
  if (*word != text(0)) ++shared_.wrong;
  // Rank 0 counts the rounds in which it received all messages; a member may have missed its reply.
  if (rank_ == 0) ++shared_.met[start_];
}

class HubGroupProcesses : public ::testing::TestWithParam<Strike> {
 protected:
  void SetUp() override {
    void* const memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared();
    options_.address = "127.0.0.1:0";
    options_.token_file = write_token(dir_.file("token"), "a secret of a test's run");
    auto hub = hub::make_tcp_hub(options_, &options_.address);  // a port that is free
    ASSERT_OK(hub);
  }
  void TearDown() override {
    for (const pid_t process : running_) {
      ::kill(process, SIGKILL);
      ::waitpid(process, nullptr, 0);
    }
    if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
  }

  pid_t start(unsigned rank, unsigned number) {
    const pid_t process = ::fork();
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(Member(rank, number, GetParam(), *shared_, options_).run());
    }
    running_.insert(process);
    return process;
  }
  std::array<pid_t, kRanks> start_all(unsigned number) {
    std::array<pid_t, kRanks> processes{};
    for (unsigned rank = 0; rank < kRanks; ++rank) processes[rank] = start(rank, number);
    return processes;
  }
  void kill(pid_t process) {
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
    running_.erase(process);
  }
  template <typename Holds>
  static bool wait_until(const Holds& holds) {
    Backoff backoff(milliseconds(1), milliseconds(20));
    const Deadline deadline = Deadline::after(kLongest);
    while (!holds()) {
      if (!backoff.sleep(deadline)) return false;
    }
    return true;
  }

  TempDir dir_;
  HubOptions options_;
  Shared* shared_ = nullptr;
  std::set<pid_t> running_;
};

TEST_P(HubGroupProcesses, TheOthersGoOnAndNoTwoStartsMix) {
  const Strike& strike = GetParam();
  const auto first = start_all(0);
  ASSERT_TRUE(wait_until([&] { return shared_->fired.load(); })) << "nothing was struck";
  const pid_t victim = first[strike.victim];
  const bool again = strike.fate != Fate::kStopped;
  if (again) {
    if (strike.fate == Fate::kKilled) kill(victim);
    // The launcher has ended rank 0, and the other ranks still run.
    if (running_.contains(first[0])) kill(first[0]);
    start_all(1);
    ASSERT_TRUE(wait_until([&] { return shared_->joined[1] == kRanks; }))
        << shared_->joined[1].load() << " ranks of the second start have joined";
  }
  std::atomic<std::uint64_t>& step = shared_->step[0];
  if (!again && strike.victim != 0 && shared_->joined[0] > 1) {
    const std::uint64_t struck = step;
    EXPECT_TRUE(wait_until([&] { return step > struck + 2; })) << "rank 0 waits without an end";
  }
  if (running_.contains(victim)) ::kill(victim, SIGCONT);
  const std::atomic<int>& met = shared_->met[again ? 1 : 0];
  const int before = met;
  EXPECT_TRUE(wait_until([&] {
    if (again) ++step;  // those that are left of the first start go on with it
    return met >= before + kRounds;
  })) << met.load()
      << " rounds";
  shared_->finish = true;
  for (const pid_t process : std::set(running_)) {
    int ended = -1;
    EXPECT_TRUE(wait_until([&] { return ::waitpid(process, &ended, WNOHANG) == process; }));
    EXPECT_EQ(ended, 0) << "rank of process " << process;
    running_.erase(process);
  }
  EXPECT_EQ(shared_->wrong.load(), 0U) << "messages of another start or step";
  EXPECT_EQ(shared_->late.load(), 0U) << "calls went on long after their deadline";
}

std::vector<Strike> strikes(int first, int last) {
  std::vector<Strike> all;
  for (const unsigned victim : {0U, 1U}) {
    for (int message = first; message <= last; ++message) {
      for (const Fate fate : {Fate::kKilled, Fate::kStopped, Fate::kStoppedAndReplaced}) {
        // A stopped rank 0 keeps the address, so no other process can listen there.
        if (victim == 0 && fate == Fate::kStoppedAndReplaced) continue;
        all.push_back({victim, message, fate});
      }
    }
  }
  return all;
}
std::string strike_name(const ::testing::TestParamInfo<Strike>& info) {
  constexpr std::array kFates = {"Killed", "Stopped", "StoppedAndReplaced"};
  return concat("Rank", info.param.victim, kFates[static_cast<std::size_t>(info.param.fate)], "At",
                info.param.message);
}
// Messages 0 to 3 make a member's link; each step has two more. Rank 0 has the messages of two
// members.
INSTANTIATE_TEST_SUITE_P(One, HubGroupProcesses, ::testing::ValuesIn(strikes(5, 5)), strike_name);
INSTANTIATE_TEST_SUITE_P(Long, HubGroupProcesses, ::testing::ValuesIn(strikes(0, 13)), strike_name);

}  // namespace
}  // namespace driftless::testing
