// SPDX-License-Identifier: Apache-2.0
// Receivers that serve their read chunks to each other: the assignment of sources, and hostile or
// dead sources.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>

#include "collectives/hub/tcp/authentication.h"
#include "collectives/peer/board.h"
#include "collectives/peer/shared_reader.h"
#include "collectives/peer/tracker.h"
#include "support/peer_world.h"

namespace driftless::testing {
namespace {

using namespace peer;
using std::chrono::milliseconds;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A trainer rank, and the objects that its receivers share.
class SharingTest : public ::testing::Test {
 protected:
  // A receiver: its connection to the leader, and its readers.
  struct Reader {
    Reader(const SharingTest& test, const PeerOptions& options)
        : leader(*test.road_->meeting.connector(), Request{.ask = Ask::kHello}, "the leader"),
          from_trainer(options, test.token_),
          shared(options, "127.0.0.1", test.token_, leader, from_trainer) {}

    Client leader;
    PartReader from_trainer;
    SharedReader shared;
  };

  SharingTest() : world_({}, PeerCarrier::kTcp), road_(world_.leader()) {
    options_ = world_.options();
    token_ = *data_token(options_.hub.token_file);
  }

  void publish_part(std::uint64_t version, std::uint64_t size_bytes) {
    id_ = step(version);
    bytes_ = random_part(size_bytes, version);
    const auto receipts = publish(world_, id_, {{{"part", bytes_}}});
    ASSERT_OK(receipts);
    receipt_ = receipts->front();
  }
  [[nodiscard]] std::unique_ptr<Reader> reader() const {
    return std::make_unique<Reader>(*this, options_);
  }
  [[nodiscard]] Endpoint trainer(Reader& reader) const {
    const auto reply = reader.leader.ask({.ask = Ask::kEndpoints, .id = id_}, soon());
    EXPECT_TRUE(is_ok(reply));
    return reply.ok() ? reply->endpoints.front() : Endpoint();
  }
  // Expects that a reader gets the exact bytes.
  void expect_read(Reader& reader, std::vector<ByteRange> ranges = {}) {
    if (ranges.empty()) ranges = {{0, receipt_.size_bytes}};
    const auto got = reader.shared.read(trainer(reader), id_, receipt_, ranges, soon());
    ASSERT_OK(got);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const auto expected = std::span(bytes_).subspan(ranges[i].offset, ranges[i].size_bytes);
      EXPECT_TRUE(std::ranges::equal((*got)[i].bytes(), expected)) << ranges[i].offset;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*got)[i].bytes().data()) % kRangeAlignment,
                ranges[i].offset % kRangeAlignment);
    }
  }
  [[nodiscard]] Request sources(Exchange exchange, const Endpoint& endpoint = {}) const {
    return {.ask = Ask::kSources,
            .bytes = receipt_.size_bytes,
            .id = id_,
            .name = receipt_.name,
            .text = to_hex(receipt_.hash),
            .endpoint = endpoint,
            .exchange = std::move(exchange)};
  }
  [[nodiscard]] ByteRange whole() const { return {0, receipt_.size_bytes}; }

  PeerWorld world_;
  std::shared_ptr<Road> road_;
  PeerOptions options_;
  std::string token_;
  PublicationId id_;
  std::vector<std::byte> bytes_;
  PartReceipt receipt_;
};

TEST_F(SharingTest, EachByteLeavesTheTrainerOnce) {
  publish_part(1, 8 * kMiB + 12'345);
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 8; ++i) readers.push_back(reader());
  std::vector<std::thread> threads;
  for (const auto& each : readers)
    threads.emplace_back([&, one = each.get()] { expect_read(*one); });
  for (std::thread& thread : threads) thread.join();
  std::uint64_t from_trainer = 0, from_receivers = 0;
  for (const auto& each : readers) {
    from_trainer += each->shared.trainer_bytes();
    from_receivers += each->shared.receiver_bytes();
  }
  EXPECT_EQ(from_trainer, bytes_.size());
  EXPECT_EQ(from_receivers, 7 * bytes_.size());
}

TEST_F(SharingTest, RangesMayOverlapTouchAndEndAnywhere) {
  publish_part(1, kMiB + 777);
  const auto one = reader(), other = reader();
  const std::vector<ByteRange> ranges = {
      {3, 200'000},      {100, 50},       {65'536, 65'536},
      {0, 65'535},       {0, 0},          {500'001, kMiB + 777 - 500'001},
      {130'000, 70'000}, {kMiB + 777, 0}, {kMiB + 770, 7}};
  expect_read(*one, ranges);
  expect_read(*other, ranges);
  EXPECT_GT(other->shared.receiver_bytes(), 600'000U);
  std::mt19937_64 random(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<ByteRange> some;
    for (int i = 0; i < 6; ++i) {
      const std::uint64_t offset = random() % receipt_.size_bytes;
      some.push_back({offset, random() % (receipt_.size_bytes - offset + 1)});
    }
    expect_read(round % 2 == 0 ? *one : *other, some);
  }
}

// A receiver made the bytes itself. A new receiver reads them from it, and the trainer rank sends
// only the few chunks that differ from the part.
TEST_F(SharingTest, WhatAReceiverOffersIsServedIfItIsThePart) {
  publish_part(1, 8 * kMiB + 12'345);
  const auto holder = reader(), joiner = reader();
  std::vector<std::byte> made = bytes_;
  made[3 * kChunkBytes + 5] ^= std::byte{1};
  made.back() ^= std::byte{1};
  const std::uint64_t damaged = kChunkBytes + bytes_.size() % kChunkBytes;
  const auto kept = holder->shared.offer(trainer(*holder), id_, receipt_, made, soon());
  ASSERT_OK(kept);
  EXPECT_EQ(*kept, bytes_.size() - damaged);
  expect_read(*joiner);
  EXPECT_EQ(joiner->shared.receiver_bytes(), bytes_.size() - damaged);
  EXPECT_EQ(joiner->shared.trainer_bytes(), damaged);
  EXPECT_EQ(holder->shared.trainer_bytes(), 0U);
  made.pop_back();
  EXPECT_EQ(holder->shared.offer(trainer(*holder), id_, receipt_, made, soon()).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(SharingTest, WhatIsOfferedHasTheSameBound) {
  options_.keep_bytes = kMiB;
  publish_part(1, 4 * kMiB);
  const auto holder = reader();
  const auto kept = holder->shared.offer(trainer(*holder), id_, receipt_, bytes_, soon());
  ASSERT_OK(kept);
  EXPECT_EQ(*kept, kMiB);
  EXPECT_EQ(holder->shared.kept_bytes(), kMiB);
}

TEST_F(SharingTest, KeptMemoryHasABound) {
  options_.keep_bytes = kMiB;
  publish_part(1, 4 * kMiB);
  const auto one = reader();
  expect_read(*one);
  EXPECT_EQ(one->shared.kept_bytes(), kMiB);
  publish_part(2, kMiB / 2);
  expect_read(*one);  // the newer one takes the place of the older one
  EXPECT_EQ(one->shared.kept_bytes(), kMiB / 2);
  const auto before = one->shared.trainer_bytes();
  expect_read(*one);
  EXPECT_EQ(one->shared.trainer_bytes(), before) << "it is there already";
  one->shared.keep_only({});
  EXPECT_EQ(one->shared.kept_bytes(), 0U);
  expect_read(*one);
}

TEST_F(SharingTest, AReaderThatWasSentAndStopsHoldsOthersUpForAShortTime) {
  options_.late = milliseconds(200);
  publish_part(1, 2 * kMiB);
  Client stopped(*road_->meeting.connector(), Request{.ask = Ask::kHello}, "the leader");
  const auto all = stopped.ask(sources({.wanted = {whole()}, .most_bytes = 64 * kMiB}), soon());
  ASSERT_OK(all);
  ASSERT_EQ(all->sources.size(), 1U);
  EXPECT_EQ(all->sources[0], (Source{.ranges = {whole()}}));
  const auto other = reader();
  expect_read(*other);
  EXPECT_EQ(other->shared.trainer_bytes(), bytes_.size());
}

TEST(TrackerTest, AChunkThatDoesNotComeIsAssignedAgain) {
  PeerOptions options;
  options.late = milliseconds(20);
  Tracker tracker(options);
  const ByteRange range{0, 2 * kChunkBytes};
  const Request want{.ask = Ask::kSources,
                     .bytes = range.size_bytes,
                     .id = step(1),
                     .name = "part",
                     .text = "hash",
                     .exchange = {.wanted = {range}, .most_bytes = kMiB}};
  const auto first = tracker.assign(1, want, range.size_bytes);
  ASSERT_OK(first);
  EXPECT_EQ(*first, (std::vector{Source{.ranges = {range}}}));
  const Deadline deadline = soon();
  std::vector<Source> second;
  while (second.empty() && !deadline.expired()) second = *tracker.assign(2, want, range.size_bytes);
  EXPECT_EQ(second, *first);
}

TEST(TrackerTest, ASourceHasNoMoreReadersThanItMayHave) {
  PeerOptions options;
  options.readers = 2;
  Tracker tracker(options);
  const ByteRange range{0, kChunkBytes};
  Request keeps{.ask = Ask::kSources,
                .bytes = range.size_bytes,
                .id = step(1),
                .name = "part",
                .text = "hash",
                .endpoint = {.rank = kNoRank, .tcp = "127.0.0.1:1", .socket = {}, .host = {}},
                .exchange = {.kept = {range}}};
  ASSERT_OK(tracker.assign(9, keeps, range.size_bytes));
  Request want = keeps;
  want.exchange = {.wanted = {range}, .most_bytes = kMiB};
  for (const std::uint64_t reader : {1U, 2U}) {
    const auto given = tracker.assign(reader, want, range.size_bytes);
    ASSERT_OK(given);
    ASSERT_EQ(given->size(), 1U);
    EXPECT_EQ(given->front().number, 9U);
  }
  EXPECT_TRUE(tracker.assign(3, want, range.size_bytes)->empty()) << "it waits";
  tracker.remove(1);
  EXPECT_EQ(tracker.assign(3, want, range.size_bytes)->size(), 1U);
  tracker.remove(9);
  const auto last = tracker.assign(4, want, range.size_bytes);
  EXPECT_EQ(*last, (std::vector{Source{.ranges = {range}}})) << "the trainer rank";
}

TEST_F(SharingTest, AReaderThatIsGoneLeavesItsChunksToOthers) {
  publish_part(1, 2 * kMiB);
  {
    Client gone(*road_->meeting.connector(), Request{.ask = Ask::kHello}, "the leader");
    ASSERT_OK(gone.ask(sources({.wanted = {whole()}, .most_bytes = 64 * kMiB}), soon()));
  }
  const auto other = reader();
  expect_read(*other);
}

TEST_F(SharingTest, ReceiversThatEndAreReplacedByTheTrainer) {
  publish_part(1, 2 * kMiB);
  auto one = reader();
  const auto other = reader();
  expect_read(*one);
  Client watcher(*road_->meeting.connector(), Request{.ask = Ask::kHello}, "the leader");
  const auto there = watcher.ask(sources({.wanted = {whole()}, .most_bytes = 64 * kMiB}), soon());
  ASSERT_OK(there);
  ASSERT_EQ(there->sources.size(), 1U);
  EXPECT_NE(there->sources[0].number, 0U) << "all of it is kept";
  one.reset();
  expect_read(*other);
  EXPECT_EQ(other->shared.trainer_bytes(), bytes_.size());
}

TEST_F(SharingTest, WhatContradictsThePublicationIsRefused) {
  publish_part(1, kMiB);
  Client client(*road_->meeting.connector(), Request{.ask = Ask::kHello}, "the leader");
  const auto code = [&](const Request& request) {
    return client.ask(request, soon()).status().code();
  };
  for (const ByteRange& bad : {ByteRange{1, kChunkBytes},
                               {0, kChunkBytes + 1},
                               {kMiB, kChunkBytes},
                               {0, 2 * kMiB},
                               {~std::uint64_t{0} - kChunkBytes + 1, kChunkBytes}}) {
    EXPECT_EQ(code(sources({.wanted = {bad}})), StatusCode::kInvalidArgument) << bad.offset;
    EXPECT_EQ(code(sources({.kept = {bad}})), StatusCode::kInvalidArgument) << bad.offset;
  }
  EXPECT_EQ(code(sources({.wanted = {whole(), whole()}})), StatusCode::kInvalidArgument);
  Request other = sources({});
  ASSERT_OK(client.ask(other, soon()));
  other.name = "invented";
  other.bytes = kMiB;
  EXPECT_EQ(code(other), StatusCode::kNoSpace);
  other = sources({});
  other.bytes = 1;
  EXPECT_EQ(code(other), StatusCode::kInvalidArgument);
  other = sources({});
  other.id = step(9);
  EXPECT_EQ(code(other), StatusCode::kNotFound);
}

// How a hostile source answers a request for bytes of a part.
enum class Lie : unsigned char {
  kSilent,    // sends nothing
  kSlow,      // a byte now and then
  kCloses,    // in the middle
  kDamaged,   // one bit
  kStale,     // all bytes, of another attempt
  kLess,      // announces fewer bytes
  kMore,      // announces more bytes
  kHead,      // a head of 2^63 bytes
  kForged,    // a head with a false proof
  kRefuses,   // kNotFound
  kStranger,  // does not know the token
};
constexpr const char* kLies[] = {"Silent", "Slow", "Closes", "Damaged", "Stale",   "Less",
                                 "More",   "Head", "Forged", "Refuses", "Stranger"};

class HostileServer {
 public:
  HostileServer(Lie lie, std::string token, std::vector<std::byte> bytes)
      : lie_(lie), token_(std::move(token)), bytes_(std::move(bytes)) {
    auto listener = hub::listen_on("127.0.0.1:0", &endpoint.tcp);
    EXPECT_TRUE(is_ok(listener));
    listener_ = std::move(*listener);
    endpoint.rank = kNoRank;
    thread_ = std::thread([this] { serve(); });
  }
  ~HostileServer() {
    stop_ = true;
    thread_.join();
  }

  Endpoint endpoint;
  std::atomic<int> connections = 0;

 private:
  void serve() {
    std::vector<hub::Socket> held;
    while (!stop_) {
      if (!hub::wait_for(listener_, POLLIN, in_ms(20))) continue;
      held.push_back(std::move(*hub::accept_one(listener_)));
      ++connections;
      static_cast<void>(answer(held.back()));
    }
  }

  [[nodiscard]] Status answer(const hub::Socket& socket) {
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string nonce, hub::new_nonce());
    DRIFTLESS_RETURN_IF_ERROR(hub::write_all(socket, concat(hub::kGreeting, nonce), in_ms(2'000)));
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string proof,
                               hub::read_all(socket, hub::kClientProofBytes, in_ms(2'000)));
    if (lie_ == Lie::kStranger) {
      return hub::write_all(socket, std::string(hub::kProofBytes, 'x'), in_ms(2'000));
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const hub::Admission admitted, hub::admit(token_, nonce, proof));
    DRIFTLESS_RETURN_IF_ERROR(hub::write_all(socket, admitted.answer, in_ms(2'000)));
    if (lie_ == Lie::kSilent) return {};
    hub::FrameReader reader(admitted.key, hub::Direction::kToServer);
    std::optional<std::string> request;
    while (!request) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string bytes, hub::read_some(socket, 4096));
      reader.append(bytes);
      DRIFTLESS_ASSIGN_OR_RETURN(request, reader.next());
      if (!request && !hub::wait_for(socket, POLLIN, in_ms(2'000))) return {};
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const Want want, parse_want(*request));
    return lie(socket, want, hub::FrameWriter(admitted.key, hub::Direction::kToClient));
  }

  [[nodiscard]] Status lie(const hub::Socket& socket, const Want& want, hub::FrameWriter writer) {
    std::string bytes;
    for (const ByteRange& range : want.ranges) {
      bytes.append(reinterpret_cast<const char*>(bytes_.data()) + range.offset, range.size_bytes);
    }
    Answer head{.bytes = bytes.size()};
    if (lie_ == Lie::kDamaged) bytes[bytes.size() / 2] ^= 1;
    if (lie_ == Lie::kStale) bytes.assign(bytes.size(), 's');
    if (lie_ == Lie::kCloses) bytes.resize(bytes.size() / 2);
    if (lie_ == Lie::kLess) head.bytes -= 1;
    if (lie_ == Lie::kMore) head.bytes = ~std::uint64_t{0};
    if (lie_ == Lie::kRefuses) head = {StatusCode::kNotFound, "gone", 0};
    DRIFTLESS_ASSIGN_OR_RETURN(std::string frame, writer.frame(to_bytes(head)));
    if (lie_ == Lie::kHead) frame[7] = '\x7f';
    if (lie_ == Lie::kForged) frame.back() = static_cast<char>(frame.back() ^ 1);
    DRIFTLESS_RETURN_IF_ERROR(hub::write_all(socket, frame, in_ms(2'000)));
    for (std::size_t i = 0; lie_ == Lie::kSlow && i < bytes.size() && !stop_; ++i) {
      DRIFTLESS_RETURN_IF_ERROR(hub::write_all(socket, bytes.substr(i, 1), in_ms(2'000)));
      std::this_thread::sleep_for(milliseconds(20));
    }
    if (lie_ == Lie::kSlow || lie_ == Lie::kRefuses) return {};
    DRIFTLESS_RETURN_IF_ERROR(hub::write_all(socket, bytes, in_ms(2'000)));
    if (lie_ == Lie::kCloses) ::shutdown(socket.get(), SHUT_RDWR);
    return {};
  }

  const Lie lie_;
  const std::string token_;
  const std::vector<std::byte> bytes_;
  hub::Socket listener_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

class LyingReceiverTest : public SharingTest, public ::testing::WithParamInterface<Lie> {};

TEST_P(LyingReceiverTest, MakesNoReadFailAndIsDropped) {
  publish_part(1, 3 * kMiB + 5);
  HostileServer hostile(GetParam(), token_, bytes_);
  Client liar(*road_->meeting.connector(), Request{.ask = Ask::kHello}, "the leader");
  ASSERT_OK(liar.ask(sources({.kept = {whole()}}, hostile.endpoint), soon()));
  const auto other = reader();
  const bool takes_time = GetParam() == Lie::kSilent || GetParam() == Lie::kSlow;
  if (takes_time) options_.late = milliseconds(2'000);
  const auto one = reader();
  expect_read(*one);
  EXPECT_GT(hostile.connections, 0) << "it was not assigned";
  EXPECT_EQ(one->shared.receiver_bytes() + one->shared.trainer_bytes(), bytes_.size());
  const int before = hostile.connections;
  expect_read(*other);  // what the first one keeps
  EXPECT_EQ(hostile.connections, before);
  EXPECT_EQ(other->shared.receiver_bytes(), bytes_.size());
  if (GetParam() == Lie::kRefuses) return;  // it may have the next one
  publish_part(2, kMiB);
  ASSERT_OK(liar.ask(sources({.kept = {whole()}}, hostile.endpoint), soon()));
  expect_read(*one);
  EXPECT_EQ(hostile.connections, before) << "it is not assigned again";
}

INSTANTIATE_TEST_SUITE_P(Every, LyingReceiverTest,
                         ::testing::Values(Lie::kSilent, Lie::kSlow, Lie::kCloses, Lie::kDamaged,
                                           Lie::kStale, Lie::kLess, Lie::kMore, Lie::kHead,
                                           Lie::kForged, Lie::kRefuses, Lie::kStranger),
                         [](const auto& each) {
                           return std::string(kLies[static_cast<std::size_t>(each.param)]);
                         });

TEST_F(SharingTest, WhatIsKeptOfAnotherAttemptIsNotServedForThisOne) {
  publish_part(1, kMiB);
  const auto one = reader();
  expect_read(*one);
  // The same version of a restarted trainer: other bytes, another hash.
  PeerWorld again({}, PeerCarrier::kTcp);
  const std::vector<std::byte> bytes = random_part(kMiB, 77);
  const auto receipts = publish(again, step(1), {{{"part", bytes}}});
  ASSERT_OK(receipts);
  PartReader reads(options_, token_);
  Client leader(*again.leader()->meeting.connector(), Request{.ask = Ask::kHello}, "the leader");
  const auto endpoints = leader.ask({.ask = Ask::kEndpoints, .id = step(1)}, soon());
  ASSERT_OK(endpoints);
  const ByteRange range{0, kMiB};
  const auto got = one->shared.read(endpoints->endpoints.front(), step(1), receipts->front(),
                                    std::span(&range, 1), soon());
  ASSERT_OK(got);
  EXPECT_TRUE(std::ranges::equal(got->front().bytes(), bytes));
}

TEST_F(SharingTest, RolloutsOfARoadServeEachOther) {
  const RankParts parts = some_parts(1, 3, 500'000, 9);
  const auto receipts = publish(world_, step(1), parts);
  ASSERT_OK(receipts);
  std::vector<std::unique_ptr<ReceiveRoad>> receivers;
  for (int i = 0; i < 3; ++i) {
    receivers.push_back(world_.receiver());
    EXPECT_EQ(listed(*receivers.back()), std::vector{step(1)});  // it is connected
  }
  std::vector<std::thread> threads;
  for (const auto& each : receivers) {
    threads.emplace_back(
        [&, one = each.get()] { expect_fetched(*one, step(1), parts, *receipts); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SharingTest, AnIdleConnectionMakesPlaceForAnotherReader) {
  PeerOptions narrow = options_;
  narrow.readers = 1;
  const auto store = std::make_shared<PartStore>(0);
  bytes_ = random_part(100'000, 4);
  Segment memory;
  ASSERT_OK(memory.reserve(bytes_.size()));
  std::ranges::copy(bytes_, memory.data());
  static_cast<void>(store->put(step(1), "part", std::move(memory), bytes_.size()));
  const auto server = make_part_server(narrow, 0, "127.0.0.1", store);
  ASSERT_OK(server);
  const PartReceipt part{.name = "part", .rank = 0, .size_bytes = bytes_.size(), .hash = {}};
  const ByteRange range{5, 1000};
  PartReader one(options_, token_), other(options_, token_);
  for (int i = 0; i < 3; ++i) {
    for (PartReader* each : {&one, &other}) {
      const auto got =
          each->read((*server)->endpoint(), step(1), part, std::span(&range, 1), soon());
      ASSERT_OK(got);
      EXPECT_TRUE(std::ranges::equal(got->front().bytes(), std::span(bytes_).subspan(5, 1000)));
    }
  }
}

}  // namespace
}  // namespace driftless::testing
