// SPDX-License-Identifier: Apache-2.0
// Servers over NIXL that stop and die, memory that is reused, and a missing library.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/peer/nixl_places.h"
#include "collectives/peer/nixl_reader.h"
#include "peer/nixl/nixl_library.h"
#include "support/peer_world.h"

extern char** environ;

namespace driftless::testing {
namespace {

using namespace peer;

// A process that serves a part (server_main.cpp).
class Server {
 public:
  explicit Server(std::uint64_t size) : size_(size) {
    int out[2];
    if (::pipe(out) != 0) return;
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    ::posix_spawn_file_actions_addclose(&actions, out[0]);
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "peer_nixl_server";
    std::string library = nixl_library().path, bytes = std::to_string(size), name = program;
    char* line[] = {name.data(), library.data(), bytes.data(), nullptr};
    EXPECT_EQ(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, line, environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    std::string hex;
    char byte = 0;
    while (::read(out[0], &byte, 1) == 1 && byte != '\n') hex.push_back(byte);
    ::close(out[0]);
    std::string output;
    for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
      output.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    const auto parsed = parse_place(output);
    EXPECT_TRUE(is_ok(parsed));
    if (parsed.ok()) place_ = *parsed;
  }
  ~Server() { kill(); }

  void stop() const { EXPECT_EQ(::kill(pid_, SIGSTOP), 0); }
  void go_on() const { EXPECT_EQ(::kill(pid_, SIGCONT), 0); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  // Answers as a trainer rank does; a stopped one has answered just before it was stopped.
  [[nodiscard]] NixlReader::AskPlace place() const {
    return [this](std::uint64_t known) -> Result<Place> {
      Place answer = place_;
      if (known == answer.state) answer.description.clear();
      return answer;
    };
  }
  [[nodiscard]] Status read(NixlReader& reader, int wait_ms) const {
    const ByteRange range{1, size_ - 1};
    const auto got = reader.read(0, "part", std::span(&range, 1), place(), in_ms(wait_ms));
    if (!got.ok()) return got.status();
    for (std::uint64_t i = 0; i < range.size_bytes; ++i) {
      const std::uint64_t at = i + 1;
      if (got->front().bytes()[i] != static_cast<std::byte>(at * 31 + (at >> 8))) {
        return error(StatusCode::kCorrupt, "byte ", at);
      }
    }
    return {};
  }

 private:
  std::uint64_t size_;
  pid_t pid_ = 0;
  Place place_;
};

constexpr std::uint64_t kSize = std::uint64_t{8} << 20;

std::unique_ptr<NixlReader> make_reader(std::uint64_t read_bytes = kSize / 2) {
  PeerOptions options;
  options.library = nixl_library().path;
  options.read_bytes = read_bytes;
  auto made = NixlReader::make(options);
  EXPECT_TRUE(is_ok(made));
  return std::move(*made);
}

// Waits until no read is in quarantine.
Status wait_for_the_end(NixlReader& reader) {
  const Deadline deadline = soon();
  Backoff backoff(std::chrono::milliseconds(1), std::chrono::milliseconds(20));
  while (reader.quarantined_bytes() > 0) {
    if (!backoff.sleep(deadline)) return deadline.check("the end of a read that was given up");
  }
  return {};
}

TEST(PeerNixlFaultTest, AReadFromAStoppedServerIsQuarantinedUntilItGoesOn) {
  NEED_NIXL();
  const Server server(kSize);
  const auto reader = make_reader();
  ASSERT_OK(server.read(*reader, 30'000));
  EXPECT_EQ(reader->quarantined_bytes(), 0U);
  server.stop();
  EXPECT_EQ(server.read(*reader, 300).code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(reader->quarantined_bytes(), kSize - 1);
  // The abandoned read fills the limit.
  const Status refused = server.read(*reader, 300);
  EXPECT_EQ(refused.code(), StatusCode::kBusy);
  EXPECT_NE(refused.message().find("road.peer.read_memory"), std::string::npos)
      << refused.message();
  server.go_on();
  ASSERT_OK(wait_for_the_end(*reader));
  ASSERT_OK(server.read(*reader, 30'000));
}

TEST(PeerNixlFaultTest, AQuarantineThatIsNotFullLeavesRoomForOtherServers) {
  NEED_NIXL();
  const Server stopped(kSize), other(kSize);
  const auto reader = make_reader(4 * kSize);
  ASSERT_OK(stopped.read(*reader, 30'000));
  stopped.stop();
  EXPECT_EQ(stopped.read(*reader, 300).code(), StatusCode::kDeadlineExceeded);
  const ByteRange range{0, 100};
  ASSERT_OK(reader->read(1, "part", std::span(&range, 1), other.place(), in_ms(30'000)));
  EXPECT_GE(reader->quarantined_bytes(), kSize - 1);
}

TEST(PeerNixlFaultTest, AKilledServerIsAnError) {
  NEED_NIXL();
  Server server(kSize);
  const auto reader = make_reader();
  ASSERT_OK(server.read(*reader, 30'000));
  server.stop();
  EXPECT_EQ(server.read(*reader, 300).code(), StatusCode::kDeadlineExceeded);
  server.kill();
  ASSERT_OK(wait_for_the_end(*reader));
  // NIXL reports an error long before the deadline.
  EXPECT_EQ(server.read(*reader, 120'000).code(), StatusCode::kIo);
  EXPECT_EQ(reader->quarantined_bytes(), 0U);
}

TEST(PeerNixlFaultTest, AReaderMayGoWhileItsReadsAreInProgress) {
  NEED_NIXL();
  const Server server(kSize);
  auto reader = make_reader();
  ASSERT_OK(server.read(*reader, 30'000));
  server.stop();
  EXPECT_EQ(server.read(*reader, 300).code(), StatusCode::kDeadlineExceeded);
  reader.reset();
  server.go_on();
  ASSERT_OK(server.read(*make_reader(), 30'000));
}

// Agents of this process: how a rank reuses memory that was read.
class PeerNixlMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NEED_NIXL();
    auto agent = NixlAgent::make(nixl_library().path, NixlRole::kServes);
    ASSERT_OK(agent);
    places_ = std::make_unique<NixlPlaces>(std::move(*agent));
    reader_ = make_reader();
  }
  void put(std::uint64_t version, std::size_t size) {
    Segment memory = store_->take_memory();
    ASSERT_OK(memory.reserve(size));
    std::fill_n(memory.data(), size, static_cast<std::byte>(version));
    store_->put(step(version), "part", std::move(memory), size);
  }
  [[nodiscard]] Place place(std::uint64_t version) {
    auto found = places_->place_of(*store_->find(step(version), "part"), 0);
    EXPECT_TRUE(is_ok(found));
    return *found;
  }
  // The first byte at a place, which may be outdated; -1: NIXL refuses the read.
  [[nodiscard]] int first_byte(const Place& at) {
    const ByteRange range{0, 1000};
    const auto got = reader_->read(
        0, "part", std::span(&range, 1), [&](std::uint64_t) { return Result<Place>(at); }, soon());
    return got.ok() ? static_cast<int>(got->front().bytes()[0]) : -1;
  }

  std::shared_ptr<PartStore> store_ = std::make_shared<PartStore>(std::uint64_t{1} << 20);
  std::unique_ptr<NixlPlaces> places_;
  std::unique_ptr<NixlReader> reader_;
};

TEST_F(PeerNixlMemoryTest, IsRegisteredOnceAndUsedAgain) {
  put(1, 50'000);
  const Place before = place(1);
  EXPECT_EQ(first_byte(before), 1);
  store_->drop(step(1));
  put(2, 60'000);
  const Place after = place(2);
  EXPECT_EQ(after.address, before.address);
  EXPECT_EQ(after.state, before.state) << "nothing is registered anew";
  EXPECT_EQ(first_byte(after), 2);
}

TEST_F(PeerNixlMemoryTest, ThatIsGoneDoesNoHarmToALateReader) {
  put(1, 2'000'000);  // too large to be kept
  const Place before = place(1);
  EXPECT_EQ(first_byte(before), 1);
  store_->drop(step(1));
  put(2, 50'000);
  EXPECT_NE(place(2).removals, before.removals);
  // Reads with the outdated description. Over a network NIXL refuses; on one host it reads the
  // current content.
  EXPECT_NE(first_byte(before), 1);
  EXPECT_EQ(first_byte(place(2)), 2) << "it loads what changed";
}

TEST_F(PeerNixlMemoryTest, ThatGrowsKeepsItsOldAddressesReadable) {
  put(1, 50'000);
  const Place before = place(1);
  store_->drop(step(1));
  put(2, 900'000);  // the same segment, made larger
  EXPECT_EQ(first_byte(place(2)), 2);
  put(3, 900'000);
  EXPECT_EQ(first_byte(place(3)), 3);
  EXPECT_NE(place(2).address, before.address);
}

TEST(PeerNixlLibraryTest, ThatIsNotThereIsNamedWithItsPackage) {
  PeerWorld world({});
  const auto road = world.make_road(0, 1);
  road->options.carrier = PeerCarrier::kNixl;
  road->options.library = "/nonexistent/libnixl_capi.so";
  for (const Status& refused : {make_receiver(road).status(), make_sender(road).status()}) {
    EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
    EXPECT_NE(refused.message().find("pip install nixl-cu13"), std::string::npos);
    EXPECT_NE(refused.message().find("/nonexistent/libnixl_capi.so"), std::string::npos);
    EXPECT_NE(refused.message().find("road.peer.library"), std::string::npos);
  }
}

TEST(PeerNixlLibraryTest, ARankThatServesOtherwiseIsNamed) {
  NEED_NIXL();
  PeerWorld world({});
  const RankParts parts = some_parts(1, 1, 1000, 3);
  const auto receipts = publish(world, step(1), parts);
  ASSERT_OK(receipts);
  const auto road = world.make_road(0, 1);
  road->options.carrier = PeerCarrier::kNixl;
  road->options.library = nixl_library().path;
  const auto receiver = make_receiver(road);
  ASSERT_OK(receiver);
  const auto got = (*receiver)->fetch_part(step(1), receipts->front(), soon());
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(got.status().message().find("does not serve by NIXL"), std::string::npos);
}

}  // namespace
}  // namespace driftless::testing
