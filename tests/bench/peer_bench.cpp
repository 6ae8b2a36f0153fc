// SPDX-License-Identifier: Apache-2.0
// Measures the road peer between two processes of this host.
//
//   peer_bench [MIB] [ROUNDS] [LIBRARY]
//
// Transfers a full version by each carrier, and compares it with a bare loop over the same carrier:
//
// - tcp: the loop sends the same memory through one socket, into memory that was touched before.
// - shm: the loop maps the same memory and sums up every byte, as the road's reader does.
// - nixl, if LIBRARY names libnixl_capi.so: two agents of the loop make one read of everything,
//   into memory that was registered and touched before.
//
// Prints a line of JSON for each carrier. The time of hashing the received bytes is separate.
//
//   peer_bench publish [MIB] [ROUNDS]
//
// Measures the time that a rank takes to publish a version: without readers, and with 8 readers
// over TCP that are stopped (SIGSTOP) in the middle of a transfer. Prints one line of JSON.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <thread>

#include "collectives/hub/tcp/authentication.h"
#include "collectives/hub/tcp/socket.h"
#include "collectives/peer/board.h"
#include "collectives/peer/part_reader.h"
#include "collectives/peer/part_server.h"
#include "collectives/peer/peer_road.h"
#include "core/stopwatch.h"

namespace driftless::peer {
namespace {

constexpr PublicationId kVersion{1, PublicationKind::kVersion};
constexpr std::size_t kPiece = std::size_t{4} << 20;

Deadline soon() { return Deadline::after(std::chrono::minutes(2)); }

[[noreturn]] void die(const Status& why) {
  std::fprintf(stderr, "peer_bench: %s\n", why.to_string().c_str());
  std::exit(1);
}
template <typename T>
T must(Result<T> result) {
  if (!result.ok()) die(result.status());
  return std::move(*result);
}

std::uint64_t sum(std::span<const std::byte> bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(bytes.data());
  return std::accumulate(words, words + bytes.size() / sizeof(*words), std::uint64_t{0});
}

// Sent by the serving process to the reading one.
struct Served {
  char tcp[64], socket[64], host[128], bare[64];
  // Describes the serving NIXL agent of the bare loop.
  std::uint64_t address = 0, description_bytes = 0;
  char description[16384];
};

struct Sample {
  double bare = 0, road = 0, hash = 0;  // seconds
};

// The other process: serves the part over the road, and answers the bare loop on another socket.
[[noreturn]] void serve(const PeerOptions& options, std::uint64_t size, int to_reader) {
  auto store = std::make_shared<PartStore>(0);
  Segment memory;
  if (const Status there = memory.reserve(size); !there.ok()) die(there);
  auto* words = reinterpret_cast<std::uint64_t*>(memory.data());
  std::iota(words, words + size / sizeof(*words), 1);
  const std::string_view bytes(reinterpret_cast<const char*>(memory.data()), size);
  const std::span<std::byte> plain(memory.data(), size);
  store->put(kVersion, "part", std::move(memory), size);
  const auto server = must(make_part_server(options, 0, "127.0.0.1", store));
  std::string bare;
  const hub::Socket listener = must(hub::listen_on("127.0.0.1:0", &bare));
  Served served{};
  const Endpoint& at = server->endpoint();
  at.tcp.copy(served.tcp, sizeof(served.tcp) - 1);
  at.socket.copy(served.socket, sizeof(served.socket) - 1);
  at.host.copy(served.host, sizeof(served.host) - 1);
  bare.copy(served.bare, sizeof(served.bare) - 1);
  std::shared_ptr<NixlAgent> agent;
  std::shared_ptr<const void> registered;
  if (options.carrier == PeerCarrier::kNixl) {
    agent = must(NixlAgent::make(options.library, NixlRole::kServes));
    registered = must(agent->add(plain));
    const NixlDescription described = must(agent->describe());
    if (described.bytes.size() > sizeof(served.description)) std::exit(1);
    served.address = reinterpret_cast<std::uintptr_t>(plain.data());
    served.description_bytes = described.bytes.copy(served.description, sizeof(served.description));
  }
  if (::write(to_reader, &served, sizeof(served)) != sizeof(served)) std::exit(1);
  for (;;) {  // until it is killed
    if (!hub::wait_for(listener, POLLIN, soon())) std::exit(1);
    const hub::Socket socket = must(hub::accept_one(listener));
    for (std::string_view left = bytes; !left.empty();
         left.remove_prefix(std::min(left.size(), kPiece))) {
      if (!hub::write_all(socket, left.substr(0, kPiece), soon()).ok()) break;
    }
  }
}

double bare_tcp(const Served& served, std::span<std::byte> into) {
  Stopwatch watch;
  const hub::Socket socket = must(hub::connect_to(served.bare, soon()));
  if (const Status got = hub::read_into(socket, into, soon(), std::chrono::seconds(60));
      !got.ok()) {
    die(got);
  }
  return watch.lap_ms() * 1e-3;
}

// The reading NIXL agent of the bare loop, with its own memory.
class BareNixl {
 public:
  BareNixl(const PeerOptions& options, const Served& served, std::uint64_t size)
      : agent_(must(NixlAgent::make(options.library, NixlRole::kReads))),
        memory_(size),
        registered_(must(agent_->add(memory_))),
        name_(must(agent_->load({served.description, served.description_bytes}))) {}
  double read(const Served& served) {
    Stopwatch watch;
    const NixlMove whole{memory_.data(), served.address, memory_.size()};
    const NixlRead read = must(agent_->start(name_, std::span(&whole, 1)));
    while (!must(agent_->ended(read))) std::this_thread::sleep_for(std::chrono::microseconds(20));
    return watch.lap_ms() * 1e-3;
  }

 private:
  std::shared_ptr<NixlAgent> agent_;
  std::vector<std::byte> memory_;
  std::shared_ptr<const void> registered_;
  std::string name_;
};

Sample measure(const PeerOptions& options, const Served& served, std::uint64_t size,
               PartReader& reader, BareNixl* nixl) {
  const Endpoint from{.rank = 0,
                      .tcp = served.tcp,
                      .socket = served.socket,
                      .host = served.host,
                      .nixl = nixl == nullptr ? NixlOffer::kNone : NixlOffer::kThere};
  const PartReceipt part{.name = "part", .rank = 0, .size_bytes = size, .hash = {}};
  const ByteRange whole{0, size};
  const bool shm = options.carrier == PeerCarrier::kShm;
  Sample sample;
  std::uint64_t expected = 0;
  if (nixl != nullptr) {
    sample.bare = nixl->read(served);
  } else if (!shm) {
    std::vector<std::byte> memory(size);
    sample.bare = bare_tcp(served, memory);
  }
  if (shm) {  // a mapping of the same memory, made once
    const auto mapped = must(reader.read(from, kVersion, part, std::span(&whole, 1), soon()));
    Stopwatch watch;
    expected = sum(mapped.front().bytes());
    sample.bare = watch.lap_ms() * 1e-3;
  }
  Stopwatch watch;
  const auto got = must(reader.read(from, kVersion, part, std::span(&whole, 1), soon()));
  if (shm && sum(got.front().bytes()) != expected) die(error(StatusCode::kCorrupt, "other bytes"));
  sample.road = watch.lap_ms() * 1e-3;
  Stopwatch hashing;
  static_cast<void>(xxh3_128(got.front().bytes()));
  sample.hash = hashing.lap_ms() * 1e-3;
  return sample;
}

void run(PeerCarrier carrier, std::string_view name, std::uint64_t size, int rounds,
         const std::string& token_file, const std::string& library = {}) {
  PeerOptions options{.hub = {.token_file = token_file}, .carrier = carrier, .library = library};
  options.read_bytes = 2 * size;
  int pipe[2];
  if (::pipe(pipe) != 0) std::exit(1);
  const pid_t child = ::fork();
  if (child == 0) serve(options, size, pipe[1]);
  Served served{};
  for (std::size_t done = 0; done < sizeof(served);) {
    const ssize_t got =
        ::read(pipe[0], reinterpret_cast<char*>(&served) + done, sizeof(served) - done);
    if (got <= 0) std::exit(1);
    done += static_cast<std::size_t>(got);
  }
  const std::string token = must(data_token(token_file));
  PartReader reader(options, token);
  std::unique_ptr<BareNixl> nixl;
  if (carrier == PeerCarrier::kNixl) nixl = std::make_unique<BareNixl>(options, served, size);
  std::vector<Sample> samples;
  for (int round = 0; round <= rounds; ++round) {
    samples.push_back(measure(options, served, size, reader, nixl.get()));
  }
  samples.erase(samples.begin());  // the first one warms up
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto median = [&](double Sample::* field) {
    std::ranges::sort(samples, {}, field);
    return samples[samples.size() / 2].*field;
  };
  const double gb = static_cast<double>(size) * 1e-9;
  const double bare = median(&Sample::bare), road = median(&Sample::road);
  std::printf(
      "{\"carrier\":\"%s\",\"gb\":%.3f,\"bare_gb_per_s\":%.2f,\"road_gb_per_s\":%.2f,"
      "\"of_bare\":%.2f,\"hash_gb_per_s\":%.2f}\n",
      std::string(name).c_str(), gb, gb / bare, gb / road, bare / road, gb / median(&Sample::hash));
  std::fflush(stdout);
}

constexpr int kStopped = 8;
// Written and read whole, because several readers share the pipe (PIPE_BUF).
using Address = std::array<char, 64>;

// A reader: asks for the whole part, takes some of it, and stops.
[[noreturn]] void stop_in_the_middle(const std::string& token, std::uint64_t size,
                                     int from_trainer) {
  Address address{};
  if (::read(from_trainer, &address, sizeof(address)) != sizeof(address)) std::exit(1);
  const hub::Socket socket = must(hub::connect_to(address.data(), soon()));
  std::string expected;
  const hub::Admission mine = must(hub::answer_hello(
      token, must(hub::read_all(socket, hub::kServerHelloBytes, soon())), &expected));
  static_cast<void>(hub::write_all(socket, mine.answer, soon()));
  static_cast<void>(must(hub::read_all(socket, hub::kProofBytes, soon())));
  hub::FrameWriter writer(mine.key, hub::Direction::kToServer);
  const Want want{.id = kVersion, .name = "part", .size_bytes = size, .ranges = {{0, size}}};
  static_cast<void>(hub::write_all(socket, must(writer.frame(to_bytes(want))), soon()));
  static_cast<void>(must(hub::read_all(socket, std::size_t{1} << 20, soon())));
  ::raise(SIGSTOP);
  std::exit(0);
}

double publish_ms(SendRoad& road, std::uint64_t version, std::span<const std::byte> bytes) {
  Stopwatch watch;
  const auto check = [](const Status& status) {
    if (!status.ok()) die(status);
  };
  check(road.begin({version, PublicationKind::kVersion}, soon()));
  {
    const auto file = must(road.create_part("part"));
    for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
      check(file->pwrite(at, bytes.subspan(at, std::min(kPiece, bytes.size() - at))));
    }
    check(file->sync());
  }
  static_cast<void>(must(road.flush(soon())));
  check(road.seal("manifest", soon()));
  return watch.lap_ms();
}

void run_publish(std::uint64_t size, int rounds, const std::string& token_file) {
  const std::string token = must(data_token(token_file));
  std::vector<pid_t> readers;
  int pipe[2];
  if (::pipe(pipe) != 0) std::exit(1);
  for (int i = 0; i < kStopped; ++i) {
    readers.push_back(::fork());
    if (readers.back() == 0) stop_in_the_middle(token, size, pipe[0]);
  }
  const HubOptions hub{.address = "127.0.0.1:0", .token_file = token_file};
  const auto road = std::make_shared<Road>(
      Road{.options = {.hub = hub, .ring_bytes = 4 * size, .ring_versions = 2},
           .meeting = {.hub = [hub] { return hub::make_tcp_hub(hub); },
                       .connector = [hub] { return hub::make_tcp_connector(hub); },
                       .leader = "the benchmark",
                       .reached_by = "127.0.0.1"}});
  auto sender = must(make_sender(road));
  std::vector<std::byte> bytes(size);
  std::uint64_t version = 0;
  const auto median = [&] {
    std::vector<double> ms;
    for (int i = 0; i < rounds; ++i) ms.push_back(publish_ms(*sender, ++version, bytes));
    std::ranges::sort(ms);
    return ms[ms.size() / 2];
  };
  publish_ms(*sender, ++version, bytes);
  Address address{};  // notes(): "... serves its parts on HOST:PORT, and ..."
  const std::string note = sender->notes().front();
  const std::size_t at = note.find(" on ") + 4;
  note.substr(at, note.find(',', at) - at).copy(address.data(), sizeof(address) - 1);
  for (int i = 0; i < kStopped; ++i) {
    if (::write(pipe[1], &address, sizeof(address)) != sizeof(address)) std::exit(1);
  }
  for (const pid_t reader : readers) {
    int status = 0;
    if (::waitpid(reader, &status, WUNTRACED) != reader || !WIFSTOPPED(status)) std::exit(1);
  }
  const double stopped = median();
  for (const pid_t reader : readers) {
    ::kill(reader, SIGKILL);
    ::waitpid(reader, nullptr, 0);
  }
  publish_ms(*sender, ++version, bytes);
  const double none = median();
  std::printf(
      "{\"mib\":%llu,\"none_ms\":%.1f,\"stopped_readers\":%d,\"stopped_ms\":%.1f,"
      "\"ratio\":%.2f}\n",
      static_cast<unsigned long long>(size >> 20), none, kStopped, stopped, stopped / none);
  road->board.reset();
}

}  // namespace
}  // namespace driftless::peer

int main(int argc, char** argv) {
  using namespace driftless;
  const bool publish = argc > 1 && std::string_view(argv[1]) == "publish";
  if (publish) {
    --argc;
    ++argv;
  }
  const std::uint64_t size = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  char path[] = "/tmp/peer_bench_XXXXXX";  // mkstemp makes it 0600
  const int file = ::mkstemp(path);
  if (file < 0 || ::write(file, "0123456789abcdef\n", 17) != 17) return 1;
  ::close(file);
  if (publish) {
    peer::run_publish(size, rounds, path);
    ::unlink(path);
    return 0;
  }
  peer::run(PeerCarrier::kTcp, "tcp", size, rounds, path);
  peer::run(PeerCarrier::kShm, "shm", size, rounds, path);
  if (argc > 3) peer::run(PeerCarrier::kNixl, "nixl", size, rounds, path, argv[3]);
  ::unlink(path);
  return 0;
}
