// SPDX-License-Identifier: Apache-2.0
// A run of four processes over the TCP hub: a leading trainer, another rank, two receivers. At a
// message of each kind, before it is sent or after it was received, one process is killed, or
// stopped for longer than the allowed silence. The others end their calls within their deadlines,
// the run continues with the remaining processes, and no process ever holds wrong bytes.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <map>

#include "support/process_fabric.h"
#include "support/tcp_hub.h"
#include "support/watched_hub.h"

namespace driftless::testing {
namespace {

using nccl::MessageKind;
using std::chrono::milliseconds;

enum class Role : unsigned char { kLeader, kRank, kReceiver, kOther };
enum class Moment : unsigned char { kBeforeSending, kReceived };

constexpr milliseconds kSilence{1'000}, kStopped{1'500};
constexpr int kCallMs = 3'000;
constexpr milliseconds kSlack{5'000};  // for a loaded machine
constexpr int kGenerousMs = 90'000;
constexpr std::uint64_t kFailing = 2;  // the version whose first attempt a rank cannot send

struct Fault {
  Role victim = Role::kReceiver;
  Moment moment = Moment::kReceived;
  MessageKind kind = MessageKind::kAck;
  int signal = SIGKILL;
  bool replaced = false;  // a stopped rank: the trainers start anew before it goes on
};

// Memory that the processes of a case share.
struct Shared {
  std::atomic<bool> fired = false;
  std::atomic<std::uint64_t> start = 0;  // of the trainers
  std::atomic<bool> finish = false, leader_ended = false;
  std::atomic<unsigned> left = 0, receivers = 2;
  std::atomic<std::uint64_t> committed = 0;
  std::atomic<std::uint64_t> asked = 0, asked_version = 0;  // of the other rank, by the leader
  std::atomic<std::uint64_t> answered = 0;
  std::atomic<bool> answer_ok = false;
  std::array<std::atomic<std::uint64_t>, 2> seen = {};  // by receivers
  std::atomic<unsigned> wrong = 0, late = 0;
};

std::vector<std::byte> bytes_of(std::uint64_t version, unsigned rank) {
  return random_part(5'000, 10 * version + rank);
}

// A process of the run, after the fork.
class Member {
 public:
  Member(Role role, const Fault& fault, Shared& shared, const HubOptions& hub, std::string meetings,
         std::uint64_t start)
      : role_(role), fault_(fault), shared_(shared), hub_(hub), meetings_(std::move(meetings)) {
    options_.silence = kSilence;
    options_.start = start;
  }

  void strike(Moment moment, std::string_view text) {
    if (role_ != fault_.victim || moment != fault_.moment || shared_.fired) return;
    const Result<nccl::Message> message = nccl::parse_message(text);
    if (!message.ok() || message->kind != fault_.kind || shared_.fired.exchange(true)) return;
    struck_ = true;
    ::raise(fault_.signal);
  }

  int run() {
    switch (role_) {
      case Role::kLeader: return lead();
      case Role::kRank: return follow_leader();
      default: return receive(role_ == Role::kReceiver ? 0 : 1);
    }
  }

 private:
  [[nodiscard]] std::shared_ptr<nccl::Fabric> fabric() {
    return std::make_shared<ProcessFabric>(meetings_, faults_);
  }
  // Checks that a call with this deadline ended in time.
  template <typename Call>
  auto timed(int wait_ms, const Call& call) {
    const auto begin = Deadline::Clock::now();
    auto result = call(in_ms(wait_ms));
    if (!struck_ && Deadline::Clock::now() - begin > milliseconds(wait_ms) + kSlack) ++shared_.late;
    return result;
  }
  [[nodiscard]] MessageWatch watch() {
    return {[this](std::string_view message) { strike(Moment::kBeforeSending, message); },
            [this](std::string_view message) { strike(Moment::kReceived, message); }};
  }
  [[nodiscard]] Result<hub::Connector> connector();
  [[nodiscard]] Result<std::unique_ptr<hub::Hub>> hub();
  int lead();
  int follow_leader();
  int receive(unsigned number);
  [[nodiscard]] Status publish(SendRoad& road, std::uint64_t version);
  [[nodiscard]] Status send_as_asked(SendRoad& road, std::uint64_t version);
  void check(ReceiveRoad& road, const PublicationId& id);

  const Role role_;
  const Fault fault_;
  Shared& shared_;
  const HubOptions hub_;
  const std::string meetings_;
  NcclOptions options_;
  std::shared_ptr<FabricFaults> faults_ = std::make_shared<FabricFaults>();
  std::atomic<bool> struck_ = false;
  bool failed_once_ = false;
};

Result<hub::Connector> Member::connector() {
  DRIFTLESS_ASSIGN_OR_RETURN(hub::Connector plain, hub::make_tcp_connector(hub_));
  return watched(std::move(plain), watch());
}

// The port of a killed leader may still be in use for a moment.
Result<std::unique_ptr<hub::Hub>> Member::hub() {
  Backoff backoff(milliseconds(5), milliseconds(100));
  const Deadline deadline = in_ms(kGenerousMs);
  for (;;) {
    Result<std::unique_ptr<hub::Hub>> made = hub::make_tcp_hub(hub_);
    if (made.ok()) {
      return std::unique_ptr<hub::Hub>(std::make_unique<WatchedHub>(std::move(*made), watch()));
    }
    if (!backoff.sleep(deadline)) return made.status();
  }
}

Status Member::publish(SendRoad& road, std::uint64_t version) {
  const Deadline deadline = in_ms(kCallMs);
  DRIFTLESS_RETURN_IF_ERROR(
      timed(kCallMs, [&](const Deadline&) { return road.begin(step(version), deadline); }));
  shared_.asked_version = version;
  const std::uint64_t asked = ++shared_.asked;
  DRIFTLESS_RETURN_IF_ERROR(write_part(road, {"part", bytes_of(version, 0)}));
  const auto sent = timed(kCallMs, [&](const Deadline&) { return road.flush(deadline); });
  DRIFTLESS_RETURN_IF_ERROR(sent.status());
  Backoff backoff(milliseconds(1), milliseconds(5));
  while (shared_.answered != asked) {
    if (!backoff.sleep(deadline)) return deadline.check("waiting for the other rank");
  }
  if (!shared_.answer_ok) return error(StatusCode::kIo, "the other rank could not send");
  return timed(kCallMs,
               [&](const Deadline&) { return road.seal(concat("version ", version), deadline); });
}

int Member::lead() {
  auto made_hub = hub();
  if (!made_hub.ok()) return 2;
  auto made = nccl::make_leading_sender(options_, 2, fabric(), std::move(*made_hub));
  if (!made.ok()) return 3;
  SendRoad& road = **made;
  Backoff backoff(milliseconds(5), milliseconds(20));
  const Deadline joining = in_ms(2'000);
  while (road.receivers()->size() < shared_.receivers && backoff.sleep(joining)) {
  }
  if (!road.announce("run", in_ms(kCallMs)).ok()) return 4;
  while (!shared_.finish) {
    const std::uint64_t version = shared_.committed + 1;
    if (publish(road, version).ok()) {
      shared_.committed = version;
    } else if (!road.abort().ok()) {
      return 5;
    }
  }
  const Deadline leaving = in_ms(3'000);
  while (shared_.left < shared_.receivers && backoff.sleep(leaving)) {
  }
  made->reset();
  shared_.leader_ended = true;
  return 0;
}

Status Member::send_as_asked(SendRoad& road, std::uint64_t version) {
  const Deadline deadline = in_ms(kCallMs);
  if (version == kFailing && !failed_once_) failed_once_ = faults_->stalls = true;
  DRIFTLESS_RETURN_IF_ERROR(
      timed(kCallMs, [&](const Deadline&) { return road.begin(step(version), deadline); }));
  DRIFTLESS_RETURN_IF_ERROR(write_part(road, {"part", bytes_of(version, 1)}));
  return timed(kCallMs, [&](const Deadline&) { return road.flush(deadline).status(); });
}

int Member::follow_leader() {
  auto connect = connector();
  if (!connect.ok()) return 2;
  const auto road = nccl::make_other_sender(options_, 1, 2, fabric(), std::move(*connect));
  std::uint64_t done = shared_.answered;
  const auto is_replaced = [&] { return shared_.start != options_.start; };
  while (!shared_.finish && !is_replaced()) {
    const std::uint64_t asked = shared_.asked;
    if (asked == done) {
      ::usleep(1'000);
      continue;
    }
    done = asked;
    const std::uint64_t version = shared_.asked_version;
    const bool ok = send_as_asked(*road, version).ok();
    if (!ok && !road->abort().ok()) return 3;
    static_cast<void>(timed(
        kCallMs, [&](const Deadline& until) { return road->published(step(version), until); }));
    // The stopped rank belongs to the earlier start, and must not take part in the new one.
    if (is_replaced()) return ok && fault_.kind != MessageKind::kPublished ? 4 : 0;
    shared_.answer_ok = ok;
    shared_.answered = asked;
  }
  return 0;
}

void Member::check(ReceiveRoad& road, const PublicationId& id) {
  for (unsigned rank = 0; rank < 2; ++rank) {
    const std::vector<std::byte> expected = bytes_of(id.version, rank);
    const PartReceipt part{"part", rank, expected.size(), xxh3_128(expected)};
    const auto got =
        timed(kCallMs, [&](const Deadline& until) { return road.fetch_part(id, part, until); });
    // A new leader does not have the versions of the last one.
    if (!got.ok() && got.status().code() == StatusCode::kNotFound) continue;
    if (!got.ok() || !std::ranges::equal(got->bytes(), expected)) ++shared_.wrong;
  }
}

int Member::receive(unsigned number) {
  auto connect = connector();
  if (!connect.ok()) return 2;
  auto road = nccl::make_receiver(options_, fabric(), std::move(*connect));
  if (!road.ok()) return 3;
  std::uint64_t seen = 0;
  const auto report = [&](const Deadline& until) {
    return (*road)->report({concat("receiver ", number), seen, "there"}, until);
  };
  while (!shared_.finish) {
    static_cast<void>(timed(kCallMs, report));
    static_cast<void>(
        timed(200, [&](const Deadline& until) { return (*road)->wait_beyond(seen, until); }));
    const auto ids = timed(kCallMs, [&](const Deadline& until) { return (*road)->list(until); });
    for (const PublicationId& id : ids.ok() ? *ids : std::vector<PublicationId>()) {
      if (id.version <= seen) continue;
      check(**road, id);
      seen = id.version;
    }
    shared_.seen[number] = seen;
  }
  static_cast<void>(timed(kCallMs, [&](const Deadline& until) { return (*road)->leave(until); }));
  ++shared_.left;
  Backoff backoff(milliseconds(5), milliseconds(20));
  const Deadline ending = in_ms(3'000);
  while (!shared_.leader_ended && backoff.sleep(ending)) {
  }
  return 0;
}

class TcpProcesses : public ::testing::TestWithParam<Fault> {
 protected:
  void SetUp() override {
    void* const memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    shared_ = new (memory) Shared();
    options_.address = "127.0.0.1:0";
    options_.token_file = write_token(dir_.file("token"), "the secret of this run");
    ASSERT_OK(hub::make_tcp_hub(options_, &options_.address));  // a port that is free
  }
  void TearDown() override {
    for (const auto& [role, pid] : running_) ::kill(pid, SIGKILL);
    for (const auto& [role, pid] : running_) ::waitpid(pid, nullptr, 0);
    if (shared_ != nullptr) ::munmap(shared_, sizeof(Shared));
  }

  void start(Role role) {
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid > 0) {
      running_[role] = pid;
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    Member member(role, GetParam(), *shared_, options_, dir_.file("meetings"), start_number_);
    ::_exit(member.run());
  }
  void start_trainers() {
    shared_->start = ++start_number_;
    shared_->answered = shared_->asked.load();
    start(Role::kLeader);
    start(Role::kRank);
  }
  void end(Role role, int signal) {
    ::kill(running_.at(role), signal);
    ::waitpid(running_.at(role), nullptr, 0);
    running_.erase(role);
  }
  static bool wait_until(const std::function<bool()>& holds, int wait_ms = kGenerousMs) {
    Backoff backoff(milliseconds(5), milliseconds(20));
    const Deadline deadline = in_ms(wait_ms);
    while (!holds()) {
      if (!backoff.sleep(deadline)) return false;
    }
    return true;
  }

  // Called after the fault: if a trainer is gone, all trainers start again.
  void mend() {
    const Fault& fault = GetParam();
    if (fault.replaced) return replace_stopped_rank();
    if (fault.signal == SIGSTOP) {
      std::this_thread::sleep_for(kStopped);
      ::kill(running_.at(fault.victim), SIGCONT);
      return;
    }
    end(fault.victim, 0);
    if (fault.victim == Role::kReceiver) {
      shared_->receivers = 1;
    } else if (!shared_->finish) {
      end(fault.victim == Role::kLeader ? Role::kRank : Role::kLeader, SIGKILL);
      start_trainers();
    }
  }
  // The messages and links of the earlier start's process are ignored.
  void replace_stopped_rank() {
    const pid_t stopped = running_.at(Role::kRank);
    end(Role::kLeader, SIGKILL);
    const std::uint64_t before = shared_->committed;
    start_trainers();
    EXPECT_TRUE(wait_until([&] { return shared_->committed > before; }));
    ::kill(stopped, SIGCONT);
    int status = 0;
    EXPECT_TRUE(wait_until([&] { return ::waitpid(stopped, &status, WNOHANG) == stopped; }));
    EXPECT_EQ(status, 0) << "the new leader took what it sent";
  }
  bool all_have(std::uint64_t version) const {
    return (!running_.contains(Role::kReceiver) || shared_->seen[0] >= version) &&
           shared_->seen[1] >= version;
  }

  TempDir dir_{TempDir::Where::kMemory};
  HubOptions options_;
  Shared* shared_ = nullptr;
  std::uint64_t start_number_ = 0;
  std::map<Role, pid_t> running_;
};

TEST_P(TcpProcesses, TheRunGoesOnWithThoseThatAreLeft) {
  const MessageKind kind = GetParam().kind;
  const bool at_the_end = kind == MessageKind::kLeave || kind == MessageKind::kGoodbye;
  start_trainers();
  start(Role::kReceiver);
  start(Role::kOther);
  if (!at_the_end) {
    ASSERT_TRUE(wait_until([&] { return shared_->fired.load(); })) << "no such message was seen";
    mend();
  }
  const std::uint64_t goal = shared_->committed + (at_the_end ? 3 : 2);
  EXPECT_TRUE(wait_until([&] { return all_have(goal); }))
      << "committed: " << shared_->committed << ", seen: " << shared_->seen[0] << ", "
      << shared_->seen[1] << ", wanted: " << goal;
  shared_->finish = true;
  if (at_the_end) {
    ASSERT_TRUE(wait_until([&] { return shared_->fired.load(); })) << "no such message was seen";
    mend();
  }
  for (auto it = running_.begin(); it != running_.end(); it = running_.erase(it)) {
    int status = 0;
    EXPECT_TRUE(wait_until([&] { return ::waitpid(it->second, &status, WNOHANG) == it->second; }))
        << "role " << static_cast<int>(it->first) << " does not end";
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "role " << static_cast<int>(it->first) << ": status " << status;
  }
  EXPECT_EQ(shared_->wrong, 0U) << "parts with wrong bytes";
  EXPECT_EQ(shared_->late, 0U) << "calls that outlasted their deadlines";
}

constexpr std::array<std::string_view, 19> kKinds = {
    "hello", "ping",    "report",    "leave",   "ack",      "committed", "begin",
    "offer", "failed",  "published", "welcome", "announce", "pong",      "probe",
    "reply", "receive", "drop",      "commit",  "goodbye"};

std::string fault_name(const ::testing::TestParamInfo<Fault>& info) {
  constexpr std::array<std::string_view, 4> kRoles = {"leader", "rank", "receiver", "other"};
  const Fault& fault = info.param;
  return concat(kRoles[static_cast<std::size_t>(fault.victim)],
                fault.moment == Moment::kReceived ? "_got_" : "_sends_",
                kKinds[static_cast<std::size_t>(fault.kind)],
                fault.replaced ? "_replaced" : (fault.signal == SIGKILL ? "_killed" : "_stopped"));
}

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault_name({fault, 0}); }

// Every kind of message, at its sender and at its receiver, killed and stopped.
std::vector<Fault> every_fault() {
  using enum MessageKind;
  std::vector<Fault> faults;
  const auto add = [&](Role victim, Moment moment, std::initializer_list<MessageKind> kinds) {
    for (const MessageKind kind : kinds) {
      for (const int signal : {SIGKILL, SIGSTOP}) faults.push_back({victim, moment, kind, signal});
      if (victim == Role::kRank) faults.push_back({victim, moment, kind, SIGSTOP, true});
    }
  };
  add(Role::kReceiver, Moment::kBeforeSending, {kHello, kPing, kReport, kLeave, kAck, kCommitted});
  add(Role::kRank, Moment::kBeforeSending, {kHello, kBegin, kOffer, kFailed, kPublished});
  add(Role::kLeader, Moment::kReceived,
      {kHello, kPing, kReport, kLeave, kAck, kCommitted, kBegin, kOffer, kFailed, kPublished});
  add(Role::kLeader, Moment::kBeforeSending,
      {kWelcome, kAnnounce, kPong, kProbe, kReply, kReceive, kDrop, kCommit, kGoodbye});
  add(Role::kReceiver, Moment::kReceived,
      {kWelcome, kAnnounce, kPong, kProbe, kReply, kReceive, kDrop, kCommit, kGoodbye});
  add(Role::kRank, Moment::kReceived, {kWelcome, kReply, kDrop});
  return faults;
}

// The most important cases, in every run of the tests.
constexpr Fault kFew[] = {
    {Role::kReceiver, Moment::kBeforeSending, MessageKind::kAck, SIGKILL},
    {Role::kReceiver, Moment::kReceived, MessageKind::kCommit, SIGSTOP},
    {Role::kRank, Moment::kBeforeSending, MessageKind::kOffer, SIGSTOP},
    {Role::kRank, Moment::kBeforeSending, MessageKind::kOffer, SIGSTOP, true},
    {Role::kRank, Moment::kReceived, MessageKind::kReply, SIGKILL},
    {Role::kLeader, Moment::kBeforeSending, MessageKind::kCommit, SIGKILL},
    {Role::kLeader, Moment::kReceived, MessageKind::kAck, SIGSTOP},
};

INSTANTIATE_TEST_SUITE_P(Few, TcpProcesses, ::testing::ValuesIn(kFew), fault_name);
INSTANTIATE_TEST_SUITE_P(EveryMessage, TcpProcesses, ::testing::ValuesIn(every_fault()),
                         fault_name);

}  // namespace
}  // namespace driftless::testing
