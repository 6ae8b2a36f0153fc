// SPDX-License-Identifier: Apache-2.0
// Strangers, readers that stop, trainer ranks that end, and restarts.
#include <sys/socket.h>

#include <chrono>

#include "collectives/hub/tcp/authentication.h"
#include "collectives/peer/board.h"
#include "collectives/peer/part_reader.h"
#include "collectives/peer/part_server.h"
#include "support/peer_world.h"

namespace driftless::testing {
namespace {

using namespace peer;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// One trainer rank that serves a part `part` of version 1.
class Served {
 public:
  explicit Served(const PeerOptions& given = {}, std::size_t size = 100'000)
      : bytes(random_part(size, 7)), options(given) {
    options.hub.token_file = write_token(dir_.file("token"), "a secret of a test's run");
    store = std::make_shared<PartStore>(std::uint64_t{1} << 28);
    put(step(1), "part", bytes);
    auto made = make_part_server(options, 0, "127.0.0.1", store);
    EXPECT_TRUE(is_ok(made));
    server = std::move(*made);
    receipt = {.name = "part", .rank = 0, .size_bytes = size, .hash = xxh3_128(bytes)};
    token = *data_token(options.hub.token_file);
  }

  void put(const PublicationId& id, const std::string& name, std::span<const std::byte> content) {
    Segment memory = store->take_memory();
    EXPECT_TRUE(is_ok(memory.reserve(content.size())));
    std::ranges::copy(content, memory.data());
    store->put(id, name, std::move(memory), content.size());
  }
  [[nodiscard]] Result<std::vector<MappedFile>> read(PartReader& reader, const PublicationId& id,
                                                     ByteRange range, int wait_ms = 10'000) const {
    return reader.read(server->endpoint(), id, receipt, std::span(&range, 1), in_ms(wait_ms));
  }
  [[nodiscard]] hub::Socket connect() const {
    return std::move(*hub::connect_to(server->endpoint().tcp, soon()));
  }

  std::vector<std::byte> bytes;
  PeerOptions options;
  std::shared_ptr<PartStore> store;
  std::unique_ptr<PartServer> server;
  PartReceipt receipt;
  std::string token;

 private:
  TempDir dir_;
};

PeerOptions by(PeerCarrier carrier) {
  PeerOptions options;
  options.carrier = carrier;
  return options;
}

TEST(PeerFaultTest, AProcessWithoutTheTokenIsNotServed) {
  Served served;
  for (const PeerCarrier carrier : {PeerCarrier::kTcp, PeerCarrier::kShm}) {
    PartReader stranger(by(carrier), std::string(32, 'x'));
    const auto got = served.read(stranger, step(1), {0, 10});
    ASSERT_FALSE(got.ok());
    EXPECT_NE(got.status().code(), StatusCode::kNotFound) << "it must not learn what there is";
  }
  // The hub's own token does not open a connection for data either.
  PartReader hub_token(by(PeerCarrier::kTcp), "a secret of a test's run");
  EXPECT_FALSE(served.read(hub_token, step(1), {0, 10}).ok());
  PartReader known(by(PeerCarrier::kTcp), served.token);
  ASSERT_OK(served.read(known, step(1), {0, 10}));
}

TEST(PeerFaultTest, SilentConnectionsDoNotExcludeReaders) {
  Served served;
  std::vector<hub::Socket> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(served.connect());
  PartReader known(by(PeerCarrier::kTcp), served.token);
  ASSERT_OK(served.read(known, step(1), {0, 10}, 60'000));
}

TEST(PeerFaultTest, MalformedRequestsEndTheConnectionAlone) {
  Served served;
  PartReader known(by(PeerCarrier::kTcp), served.token);
  ASSERT_OK(served.read(known, step(1), {0, 10}));
  std::mt19937_64 random(5);
  for (int round = 0; round < 20; ++round) {
    const hub::Socket socket = served.connect();
    const auto hello = hub::read_all(socket, hub::kServerHelloBytes, soon());
    ASSERT_OK(hello);
    std::string expected;
    const auto mine = hub::answer_hello(served.token, *hello, &expected);
    ASSERT_OK(mine);
    ASSERT_OK(hub::write_all(socket, mine->answer, soon()));
    ASSERT_OK(hub::read_all(socket, hub::kProofBytes, soon()));
    hub::FrameWriter writer(mine->key, hub::Direction::kToServer);
    std::string content = to_bytes(Want{step(1), "part", 100'000, Means::kBytes, {{0, 10}}});
    for (int i = 0; i < 4; ++i) content[random() % content.size()] = static_cast<char>(random());
    if (round % 3 == 0) content.resize(random() % content.size());
    auto frame = writer.frame(content);
    ASSERT_OK(frame);
    if (round % 5 == 0) (*frame)[frame->size() - 1] ^= 1;  // a false proof
    ASSERT_OK(hub::write_all(socket, *frame, soon()));
    ::shutdown(socket.get(), SHUT_WR);
    while (hub::read_some(socket, 4096).ok() && hub::wait_for(socket, 1, in_ms(2'000))) {
    }
  }
  const auto still = served.read(known, step(1), {5, 20});
  ASSERT_OK(still);
  EXPECT_TRUE(std::ranges::equal(still->front().bytes(), std::span(served.bytes).subspan(5, 20)));
}

TEST(PeerFaultTest, AReaderThatStopsIsDroppedAndDelaysNothing) {
  PeerOptions options;
  options.stall = milliseconds(300);
  options.readers = 1;
  Served served(options, std::size_t{64} << 20);
  const hub::Socket stopped = served.connect();
  const auto hello = hub::read_all(stopped, hub::kServerHelloBytes, soon());
  ASSERT_OK(hello);
  std::string expected;
  const auto mine = hub::answer_hello(served.token, *hello, &expected);
  ASSERT_OK(hub::write_all(stopped, mine->answer, soon()));
  hub::FrameWriter writer(mine->key, hub::Direction::kToServer);
  const auto frame = writer.frame(to_bytes(
      Want{step(1), "part", served.bytes.size(), Means::kBytes, {{0, served.bytes.size()}}}));
  ASSERT_OK(hub::write_all(stopped, *frame, soon()));
  // The first reader never reads; after the stall its place is free for another one.
  PartReader other(by(PeerCarrier::kTcp), served.token);
  ASSERT_OK(served.read(other, step(1), {0, 10}, 20'000));
}

TEST(PeerFaultTest, AServerThatSendsNothingIsGivenUp) {
  Served served;
  std::string bound;
  const auto listener = hub::listen_on("127.0.0.1:0", &bound);
  ASSERT_OK(listener);
  PeerOptions options = by(PeerCarrier::kTcp);
  options.stall = milliseconds(200);
  PartReader reader(options, served.token);
  Endpoint silent = served.server->endpoint();
  silent.tcp = bound;
  const ByteRange range{0, 10};
  const auto begin = Clock::now();
  EXPECT_FALSE(reader.read(silent, step(1), served.receipt, std::span(&range, 1), in_ms(500)).ok());
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
}

TEST(PeerFaultTest, AReaderFindsAServerThatWasStartedAgain) {
  Served served;
  PartReader reader(by(PeerCarrier::kTcp), served.token);
  ASSERT_OK(served.read(reader, step(1), {0, 10}));
  PeerOptions same = served.options;
  const Endpoint before = served.server->endpoint();
  same.address = before.tcp;
  served.server.reset();
  const ByteRange range{0, 10};
  EXPECT_FALSE(reader.read(before, step(1), served.receipt, std::span(&range, 1), in_ms(500)).ok());
  auto again = make_part_server(same, 0, "127.0.0.1", served.store);
  ASSERT_OK(again);
  served.server = std::move(*again);
  ASSERT_OK(served.read(reader, step(1), {0, 10}));
}

TEST(PeerFaultTest, MappedMemoryIsNeverUsedForAnotherPart) {
  Served served;
  PartReader reader(by(PeerCarrier::kShm), served.token);
  const auto held = served.read(reader, step(1), {0, served.bytes.size()});
  ASSERT_OK(held);
  served.store->drop(step(1));
  for (std::uint64_t version = 2; version < 6; ++version) {
    served.put(step(version), "part", random_part(served.bytes.size(), version));
    served.store->drop(step(version - 1));
  }
  EXPECT_TRUE(std::ranges::equal(held->front().bytes(), served.bytes));
}

TEST(PeerFaultTest, MemoryThatNoReaderMappedIsReused) {
  Served served;
  const std::byte* const before = served.store->find(step(1), "part")->memory.data();
  served.store->drop(step(1));
  EXPECT_EQ(served.store->take_memory().data(), before);
}

TEST(PeerFaultTest, ARankOfAnotherStartOrJobIsDropped) {
  PeerWorld world({.ranks = 2});
  const auto connector = world.leader()->meeting.connector();
  ASSERT_OK(connector);
  for (const auto& [ranks, rank, start] :
       {std::tuple{2U, 1U, 99UL}, {3U, 1U, 0UL}, {2U, 2U, 0UL}}) {
    const auto link = (*connector)(soon());
    ASSERT_OK(link);
    Request hello{.ask = Ask::kHello, .ranks = ranks, .start = start};
    hello.endpoint.rank = rank;
    ASSERT_OK((*link)->send(to_bytes(hello), soon()));
    ASSERT_OK((*link)->send(to_bytes(Request{.ask = Ask::kList, .number = 1}), soon()));
    EXPECT_FALSE((*link)->receive(soon()).ok()) << rank << " of " << ranks << ", start " << start;
  }
  // A trainer rank, or a process without a hello, must not ask for a rank's part as a receiver
  // does.
  const auto link = (*connector)(soon());
  ASSERT_OK(link);
  ASSERT_OK((*link)->send(to_bytes(Request{.ask = Ask::kHello}), soon()));
  ASSERT_OK(
      (*link)->send(to_bytes(Request{.ask = Ask::kBegin, .number = 2, .id = step(1)}), soon()));
  const auto reply = (*link)->receive(soon());
  ASSERT_OK(reply);
  EXPECT_NE(parse_reply(reply->value())->code, StatusCode::kOk);
  ASSERT_OK(publish(world, step(1), some_parts(2, 1, 1000, 3))) << "the ranks go on";
}

TEST(PeerFaultTest, ASealWithoutEveryRankIsRefused) {
  PeerWorld world({.ranks = 2});
  ASSERT_OK(begin_all(world, step(1)));
  ASSERT_OK(world.sender(0).flush(soon()));
  const Status sealed = world.sender(0).seal("manifest", soon());
  EXPECT_EQ(sealed.code(), StatusCode::kIncomplete);
  EXPECT_NE(sealed.message().find("rank 1"), std::string::npos);
  EXPECT_TRUE(listed(*world.receiver()).empty());
}

TEST(PeerFaultTest, AfterTheLeaderHasClosedNoCallWaits) {
  auto world = std::make_unique<PeerWorld>(WorldOptions{});
  const auto receiver = world->receiver();
  ASSERT_OK(receiver->report({"one", 0, ""}, soon()));
  world.reset();
  const auto begin = Clock::now();
  EXPECT_FALSE(receiver->list(soon()).ok());
  EXPECT_FALSE(receiver->report({"one", 0, ""}, soon()).ok());
  ASSERT_OK(receiver->leave(soon()));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

// A stopped process that was replaced under its id, and continues.
TEST(PeerFaultTest, AReceiverThatWasReplacedDoesNotSignItsSuccessorOff) {
  PeerWorld world({});
  const auto stopped = world.receiver(), successor = world.receiver();
  ASSERT_OK(stopped->report({"one", 1, ""}, soon()));
  ASSERT_OK(successor->report({"one", 3, ""}, soon()));
  ASSERT_OK(stopped->leave(soon()));
  const auto known = world.sender(0).receivers();
  ASSERT_OK(known);
  ASSERT_EQ(known->size(), 1U);
  EXPECT_EQ(known->front().version, 3U);
  EXPECT_TRUE(world.sender(0).left().empty());
  ASSERT_OK(successor->leave(soon()));
  EXPECT_TRUE(world.sender(0).receivers()->empty());
  EXPECT_EQ(world.sender(0).left(), std::vector<std::string>{"one"});
}

TEST(PeerFaultTest, TheEndReachesConnectedReceiversAndWaitsForThem) {
  PeerWorld world({});
  auto road = world.make_road(0, 1);
  auto receiver = make_receiver(road);
  ASSERT_OK(receiver);
  ASSERT_OK((*receiver)->report({"one", 0, ""}, soon()));
  EXPECT_FALSE(fetch_end(*road)->has_value());
  Status published;
  std::thread trainer([&] { published = publish_end(*world.leader(), "the end"); });
  while (!fetch_end(*road)->has_value()) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(fetch_end(*road)->value(), "the end");
  ASSERT_OK((*receiver)->leave(soon()));
  trainer.join();
  ASSERT_OK(published);
}

}  // namespace
}  // namespace driftless::testing
