// SPDX-License-Identifier: Apache-2.0
// The bounds of the hub: a thousand unproven connections, slow ones, wrong tokens, and members that
// send malformed messages, stop in the middle of one, or never read. The hub limits its memory, and
// still serves its members.
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "collectives/hub/tcp/authentication.h"
#include "collectives/hub/tcp/socket.h"
#include "support/tcp_hub.h"

namespace driftless::testing {
namespace {

using hub::HubEvent;
using std::chrono::milliseconds;

constexpr rlim_t kDescriptors = 4'096;

std::size_t count_open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// A sanitizer keeps freed memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;
#else
constexpr bool kCountsMemory = true;
#endif

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

// A hub that a thread serves. It returns every message to its sender, except an empty one.
class ServedHub {
 public:
  explicit ServedHub(const TempDir& dir) {
    options_.address = "127.0.0.1:0";
    options_.token_file = write_token(dir.file("token"), "the secret of this run");
    auto made = hub::make_tcp_hub(options_, &options_.address);
    EXPECT_TRUE(is_ok(made));
    hub_ = std::move(*made);
    thread_ = std::thread([this] { serve(); });
  }
  ~ServedHub() {
    stop_ = true;
    thread_.join();
  }
  [[nodiscard]] const HubOptions& options() const { return options_; }
  [[nodiscard]] hub::Hub& hub() { return *hub_; }
  [[nodiscard]] std::uint64_t last_peer() const { return last_peer_; }
  [[nodiscard]] unsigned came() const { return came_; }
  [[nodiscard]] unsigned went() const { return went_; }
  [[nodiscard]] std::uint64_t polls() const { return polls_; }

  [[nodiscard]] Result<std::unique_ptr<hub::Link>> connect(int wait_ms = 20'000) const {
    DRIFTLESS_ASSIGN_OR_RETURN(const hub::Connector connector, hub::make_tcp_connector(options_));
    return connector(in_ms(wait_ms));
  }
  [[nodiscard]] hub::Socket knock() const {
    auto socket = hub::connect_to(options_.address, in_ms(20'000));
    EXPECT_TRUE(is_ok(socket));
    return socket.ok() ? std::move(*socket) : hub::Socket();
  }

 private:
  void serve() {
    while (!stop_) {
      ++polls_;
      for (const HubEvent& event : hub_->poll(in_ms(20))) {
        if (event.kind == HubEvent::Kind::kCame) {
          last_peer_ = event.peer;
          ++came_;
        } else if (event.kind == HubEvent::Kind::kWent) {
          ++went_;
        } else if (!event.text.empty()) {
          hub_->send(event.peer, event.text);
        }
      }
    }
  }

  HubOptions options_;
  std::unique_ptr<hub::Hub> hub_;
  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> last_peer_ = 0, polls_ = 0;
  std::atomic<unsigned> came_ = 0, went_ = 0;
  std::thread thread_;
};

// A member that writes raw bytes, which a link would not send.
struct RawMember {
  hub::Socket socket;
  std::string key;
};

class TcpHubBounds : public ::testing::Test {
 protected:
  void SetUp() override {
    rlimit files{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < kDescriptors) GTEST_SKIP() << "at most " << files.rlim_max << " files";
    files.rlim_cur = std::max(files.rlim_cur, kDescriptors);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
    served_ = std::make_unique<ServedHub>(dir_);
    auto member = served_->connect();
    ASSERT_OK(member);
    member_ = std::move(*member);
  }

  // Expects that the member soon gets an answer.
  void expect_served(int wait_ms = 20'000) {
    const std::string text = concat("message ", ++messages_);
    ASSERT_OK(member_->send(text, in_ms(wait_ms)));
    const auto answer = member_->receive(in_ms(wait_ms));
    ASSERT_OK(answer);
    ASSERT_TRUE(answer->has_value()) << "no answer within " << wait_ms << " ms";
    EXPECT_EQ(**answer, text);
  }

  RawMember raw_member() {
    const std::string token = *hub::read_token(served_->options().token_file);
    RawMember member{served_->knock(), {}};
    const auto hello = hub::read_all(member.socket, hub::kServerHelloBytes, soon());
    EXPECT_TRUE(is_ok(hello));
    std::string expected;
    const auto admission = hub::answer_hello(token, *hello, &expected);
    EXPECT_TRUE(is_ok(admission));
    EXPECT_TRUE(is_ok(hub::write_all(member.socket, admission->answer, soon())));
    EXPECT_EQ(*hub::read_all(member.socket, hub::kProofBytes, soon()), expected);
    member.key = admission->key;
    return member;
  }

  // Whether the hub has closed a connection.
  static bool is_closed(const hub::Socket& socket, int wait_ms = 20'000) {
    const Deadline deadline = in_ms(wait_ms);
    while (!deadline.expired()) {
      if (hub::wait_for(socket, POLLIN, deadline) && !hub::read_some(socket, 4'096).ok())
        return true;
    }
    return false;
  }

  bool wait_until(const std::function<bool()>& holds, int wait_ms = 20'000) {
    Backoff backoff(milliseconds(1), milliseconds(20));
    const Deadline deadline = in_ms(wait_ms);
    while (!holds()) {
      if (!backoff.sleep(deadline)) return false;
    }
    return true;
  }

  TempDir dir_;
  std::unique_ptr<ServedHub> served_;
  std::unique_ptr<hub::Link> member_;
  unsigned messages_ = 0;
};

TEST_F(TcpHubBounds, AThousandUnprovenConnectionsKeepNoMemberOut) {
  constexpr unsigned kStrangers = 1'000;
  std::vector<hub::Socket> strangers;
  for (unsigned i = 0; i < kStrangers; ++i) strangers.push_back(served_->knock());
  std::atomic<bool> stop = false;
  std::thread again([&] {
    while (!stop) {
      for (hub::Socket& each : strangers) {
        if (stop) return;
        const auto bytes = hub::read_some(each, 4'096);
        if (!bytes.ok()) each = served_->knock();
      }
    }
  });
  // Tries for a second at a time, as a receiver does.
  bool joined = false;
  for (int i = 0; i < 20 && !joined; ++i) joined = served_->connect(1'000).ok();
  EXPECT_TRUE(joined) << "nobody can join";
  for (int i = 0; i < 20; ++i) expect_served();
  const std::size_t open = count_open_files();
  stop = true;
  again.join();
  EXPECT_LT(open, 2 * kStrangers) << "the hub holds them all";
}

TEST_F(TcpHubBounds, HalfOpenAndSlowConnectionsEndAfterTheirTime) {
  const std::size_t before = count_open_files();
  std::vector<hub::Socket> slow;
  for (int i = 0; i < 50; ++i) slow.push_back(served_->knock());
  const auto begin = Deadline::Clock::now();
  while (Deadline::Clock::now() - begin < milliseconds(5'200)) {
    for (const hub::Socket& each : slow) static_cast<void>(hub::write_some(each, "x"));
    expect_served();
    std::this_thread::sleep_for(milliseconds(100));
  }
  for (const hub::Socket& each : slow) EXPECT_TRUE(is_closed(each));
  slow.clear();
  EXPECT_TRUE(wait_until([&] { return count_open_files() <= before; }));
}

TEST_F(TcpHubBounds, WrongProofsAreRefusedAndNoMoreThanTheirSizeIsRead) {
  for (int i = 0; i < 200; ++i) {
    const hub::Socket socket = served_->knock();
    std::string bytes(hub::kClientProofBytes + 100'000, static_cast<char>(i));
    static_cast<void>(hub::write_some(socket, bytes));
    EXPECT_TRUE(is_closed(socket)) << i;
    if (i % 20 == 0) expect_served();
  }
  EXPECT_EQ(served_->came(), 1U) << "somebody was let in";
}

TEST_F(TcpHubBounds, AMemberThatSendsWhatIsNoMessageIsDropped) {
  const std::uint64_t one_too_many = hub::kMaxMessageBytes + 1;
  const std::string oversized(reinterpret_cast<const char*>(&one_too_many), 8);
  const std::string huge(8, '\xff');
  for (const std::string& length : {oversized, huge}) {
    const RawMember member = raw_member();
    ASSERT_OK(hub::write_all(member.socket, length + std::string(32, 'p'), soon()));
    EXPECT_TRUE(is_closed(member.socket));
  }
  for (const int flipped : {0, 8, 39, 40}) {  // of the length, the proof and the content
    const RawMember member = raw_member();
    hub::FrameWriter writer(member.key, hub::Direction::kToServer);
    std::string frame = *writer.frame("content");
    frame[static_cast<std::size_t>(flipped)] ^= 1;
    ASSERT_OK(hub::write_all(member.socket, frame + std::string(64, 'x'), soon()));
    EXPECT_TRUE(is_closed(member.socket)) << flipped;
    expect_served();
  }
  const RawMember truncating = raw_member();
  hub::FrameWriter writer(truncating.key, hub::Direction::kToServer);
  const std::string frame = *writer.frame(std::string(1'000, 'x'));
  ASSERT_OK(hub::write_all(truncating.socket, frame.substr(0, 500), soon()));
  expect_served();
  EXPECT_TRUE(wait_until([&] { return served_->went() == 6; }));
}

// Messages of other peers arrive while one peer stops in the middle of its message.
TEST_F(TcpHubBounds, MembersThatStopInTheMiddleOfAMessageHoldNoOneUp) {
  std::vector<RawMember> members;
  for (int i = 0; i < 20; ++i) {
    RawMember& member = members.emplace_back(raw_member());
    hub::FrameWriter writer(member.key, hub::Direction::kToServer);
    ASSERT_OK(hub::write_all(member.socket, writer.frame(std::string(5'000, 'x'))->substr(0, 4'000),
                             soon()));
  }
  for (int i = 0; i < 10; ++i) expect_served();
  EXPECT_EQ(served_->went(), 0U);
}

TEST_F(TcpHubBounds, ALargeMessageComesBackWhole) {
  auto link = served_->connect();
  ASSERT_OK(link);
  const std::string large(std::size_t{16} << 20, 'x');
  std::thread sending([&] { EXPECT_TRUE(is_ok((*link)->send(large, in_ms(60'000)))); });
  const auto back = (*link)->receive(in_ms(60'000));
  sending.join();
  ASSERT_OK(back);
  EXPECT_EQ(*back, large);
  expect_served();
}

TEST_F(TcpHubBounds, WhatGoesToManyThatDoNotReadIsHeldOnce) {
  std::vector<RawMember> deaf;
  std::vector<std::uint64_t> peers;
  for (int i = 0; i < 12; ++i) {
    deaf.push_back(raw_member());
    const unsigned expected = static_cast<unsigned>(i) + 2;
    ASSERT_TRUE(wait_until([&] { return served_->came() == expected; }));
    peers.push_back(served_->last_peer());
  }
  const std::string manifest(std::size_t{8} << 20, 'm');
  const std::size_t before = resident_bytes();
  for (const std::uint64_t peer : peers) served_->hub().send(peer, manifest);
  if (kCountsMemory) {
    EXPECT_LT(resident_bytes(), before + 5 * manifest.size()) << "12 of them have 96 MiB";
  }
  EXPECT_EQ(served_->went(), 0U) << "they may still read it";
  expect_served();
  deaf.clear();
  EXPECT_TRUE(wait_until([&] { return served_->went() == 12; }));
  EXPECT_TRUE(!kCountsMemory ||
              wait_until([&] { return resident_bytes() < before + 2 * manifest.size(); }));
}

// Different messages of 256 MiB for peers that read nothing: with the fifth, more than 1 GiB waits.
TEST_F(TcpHubBounds, LongBeyondTheBoundThePeerWithMostUnreadGoes) {
  std::vector<RawMember> deaf;
  std::vector<std::uint64_t> peers;
  for (unsigned i = 0; i < 5; ++i) {
    deaf.push_back(raw_member());
    ASSERT_TRUE(wait_until([&] { return served_->came() == i + 2; }));
    peers.push_back(served_->last_peer());
  }
  for (std::size_t i = 0; i < peers.size(); ++i) {
    served_->hub().send(peers[i], std::string(hub::kMaxMessageBytes - 64 * i, 'a'));
  }
  EXPECT_TRUE(wait_until([&] { return served_->went() == 1; }));
  expect_served();
  EXPECT_EQ(served_->went(), 1U) << "the others may still read";
  EXPECT_TRUE(is_closed(deaf[0].socket, 60'000)) << "the one with the most of them";
}

TEST_F(TcpHubBounds, WithoutDescriptorsItWaitsAndDoesNotSpin) {
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  std::vector<hub::Socket> strangers;
  for (int i = 0; i < 8; ++i) strangers.push_back(served_->knock());
  ASSERT_TRUE(wait_until([&] { return count_open_files() > 16; }));
  // The lowest free descriptor is the first one above the limit.
  const hub::Socket probe(::dup(0));
  rlimit few = files;
  few.rlim_cur = static_cast<rlim_t>(probe.get()) + 1;
  hub::Socket late(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  few.rlim_cur = static_cast<rlim_t>(late.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::size_t colon = served_->options().address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(served_->options().address.substr(colon + 1))));
  ::connect(late.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  const std::uint64_t before = served_->polls();
  std::this_thread::sleep_for(milliseconds(150));  // shorter than the time that a stranger has
  const std::uint64_t spun = served_->polls() - before;
  expect_served();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_LT(spun, 200U);
  EXPECT_TRUE(is_ok(hub::read_all(late, hub::kServerHelloBytes, in_ms(20'000)))) << "it is taken";
}

}  // namespace
}  // namespace driftless::testing
