// SPDX-License-Identifier: Apache-2.0
// The hub over TCP, and the links to it.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>

#include "collectives/hub/hub.h"
#include "collectives/hub/tcp/authentication.h"
#include "collectives/hub/tcp/socket.h"

namespace driftless::hub {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProofTime{5'000};  // for a connection to prove itself
// So long it has in any case; then it makes room for the next one, if there are too many.
constexpr milliseconds kLeastProofTime{250};
constexpr milliseconds kFullPause{10};      // until strangers are looked at again
constexpr milliseconds kEndTime{1'000};     // for the last words
constexpr std::size_t kMostStrangers = 64;  // that have not proved themselves yet
constexpr std::size_t kMostKnown = 4096;
// Of messages that peers have not read, in all: the peer that the next one is for is dropped.
constexpr std::size_t kMostQueuedBytes = 4 * kMaxMessageBytes;

// A connection: a stranger until it has proved that it knows the token.
struct Connection {
  explicit Connection(Socket opened) : socket(std::move(opened)) {}
  Socket socket;
  Deadline prove_until = Deadline::after(kProofTime);
  Deadline may_stay_until = Deadline::after(kLeastProofTime);
  std::string nonce;  // ours
  std::string said;   // of the proof, so far
  std::optional<FrameReader> reader;
  std::optional<FrameWriter> writer;
  std::string outgoing;
  bool over = false;
  [[nodiscard]] bool known() const { return reader.has_value(); }
};

class TcpHub final : public Hub {
 public:
  TcpHub(Socket listener, Socket wake, std::string token)
      : listener_(std::move(listener)), wake_(std::move(wake)), token_(std::move(token)) {}
  ~TcpHub() override {
    const Deadline deadline = Deadline::after(kEndTime);
    for (auto& [peer, connection] : connections_) {
      while (!connection.over && !connection.outgoing.empty() &&
             wait_for(connection.socket, POLLOUT, deadline)) {
        flush(connection);
      }
      if (!connection.over) wait_until_delivered(connection.socket, deadline);
    }
  }

  [[nodiscard]] std::vector<HubEvent> poll(const Deadline& deadline) override {
    wait(deadline);
    std::vector<HubEvent> events;
    const std::scoped_lock lock(mutex_);
    for (auto& [peer, connection] : connections_) serve(peer, connection, events);
    for (auto it = connections_.begin(); it != connections_.end();) {
      Connection& connection = it->second;
      if (!connection.known() && connection.prove_until.expired()) connection.over = true;
      if (!connection.over) {
        ++it;
        continue;
      }
      if (connection.known()) events.push_back({HubEvent::Kind::kWent, it->first, {}});
      it = connections_.erase(it);
    }
    accept_all();
    return events;
  }

  void send(std::uint64_t peer, std::string_view message) override {
    const std::scoped_lock lock(mutex_);
    const auto found = connections_.find(peer);
    if (found == connections_.end() || !found->second.known()) return;
    Connection& connection = found->second;
    const Result<std::string> frame = connection.writer->frame(message);
    const bool fits = connection.outgoing.empty() || queued_bytes() <= kMostQueuedBytes;
    if (!frame.ok() || !fits) {
      connection.over = true;
    } else {
      connection.outgoing += *frame;
      flush(connection);
    }
    if (connection.over || !connection.outgoing.empty()) wake();
  }

  void drop(std::uint64_t peer) override {
    const std::scoped_lock lock(mutex_);
    const auto found = connections_.find(peer);
    if (found == connections_.end()) return;
    found->second.over = true;
    wake();
  }

 private:
  [[nodiscard]] std::size_t queued_bytes() const {
    std::size_t bytes = 0;
    for (const auto& [peer, connection] : connections_) bytes += connection.outgoing.size();
    return bytes;
  }

  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
  }

  void wait(const Deadline& deadline) {
    std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}};
    long long longest = 1'000;
    {
      const std::scoped_lock lock(mutex_);
      // Who comes while there is no room waits in the listener's queue.
      if (takes_one_more()) {
        waits.push_back({listener_.get(), POLLIN, 0});
      } else {
        longest = kFullPause.count();
      }
      for (const auto& [peer, connection] : connections_) {
        const bool writes = !connection.outgoing.empty();
        waits.push_back(
            {connection.socket.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
      }
    }
    const auto left = std::min<long long>(deadline.remaining().count(), longest);
    ::poll(waits.data(), waits.size(), static_cast<int>(left));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
  }

  struct Strangers {
    std::size_t count = 0;
    Connection* oldest = nullptr;
  };
  [[nodiscard]] Strangers strangers() {
    Strangers found;
    for (auto& [peer, connection] : connections_) {  // in the order in which they came
      if (connection.known() || connection.over) continue;
      if (found.count++ == 0) found.oldest = &connection;
    }
    return found;
  }

  // Whether one more may come in: there is room, or the oldest stranger, which has had its time,
  // can go for it. Who has proved itself never does.
  [[nodiscard]] bool takes_one_more() {
    const Strangers now = strangers();
    if (connections_.size() - now.count >= kMostKnown) return false;
    return now.count < kMostStrangers || now.oldest->may_stay_until.expired();
  }

  void accept_all() {
    while (takes_one_more()) {
      Socket socket = accept_one(listener_);
      if (socket.get() < 0) return;
      if (const Strangers now = strangers(); now.count >= kMostStrangers) now.oldest->over = true;
      Connection connection(std::move(socket));
      const Result<std::string> nonce = new_nonce();
      if (!nonce.ok()) continue;
      connection.nonce = *nonce;
      connection.outgoing = concat(kGreeting, *nonce);
      flush(connection);
      connections_.emplace(++last_peer_, std::move(connection));
    }
  }

  static void flush(Connection& connection) {
    const Result<std::size_t> put = write_some(connection.socket, connection.outgoing);
    if (!put.ok()) {
      connection.over = true;
      return;
    }
    connection.outgoing.erase(0, *put);
  }

  void serve(std::uint64_t peer, Connection& connection, std::vector<HubEvent>& events) {
    flush(connection);
    for (int rounds = 0; rounds < 64 && !connection.over; ++rounds) {
      const Result<std::string> bytes = read_some(connection.socket, std::size_t{64} << 10);
      if (!bytes.ok()) connection.over = true;
      if (!bytes.ok() || bytes->empty()) return;
      std::string_view rest = *bytes;
      if (!connection.known()) {
        rest = hear_proof(connection, rest);
        if (!connection.known()) continue;
        events.push_back({HubEvent::Kind::kCame, peer, {}});
      }
      connection.reader->append(rest);
      take_messages(peer, connection, events);
    }
  }

  // Takes what belongs to the proof, and returns what follows it.
  std::string_view hear_proof(Connection& connection, std::string_view bytes) {
    const std::size_t missing = kClientProofBytes - connection.said.size();
    connection.said += bytes.substr(0, missing);
    if (connection.said.size() < kClientProofBytes) return {};
    const Result<Admission> admitted = admit(token_, connection.nonce, connection.said);
    if (!admitted.ok()) {
      connection.over = true;
      return {};
    }
    connection.reader.emplace(admitted->key, Direction::kToServer);
    connection.writer.emplace(admitted->key, Direction::kToClient);
    connection.outgoing += admitted->answer;
    flush(connection);
    return bytes.size() > missing ? bytes.substr(missing) : std::string_view();
  }

  static void take_messages(std::uint64_t peer, Connection& connection,
                            std::vector<HubEvent>& events) {
    for (;;) {
      Result<std::optional<std::string>> message = connection.reader->next();
      if (!message.ok()) connection.over = true;
      if (!message.ok() || !message->has_value()) return;
      events.push_back({HubEvent::Kind::kSaid, peer, std::move(**message)});
    }
  }

  const Socket listener_;
  const Socket wake_;
  const std::string token_;
  std::mutex mutex_;
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t last_peer_ = 0;
};

// Everybody else's side.
class TcpLink final : public Link {
 public:
  TcpLink(Socket socket, const std::string& key)
      : socket_(std::move(socket)),
        writer_(key, Direction::kToServer),
        reader_(key, Direction::kToClient) {}

  Status send(std::string_view message, const Deadline& deadline) override {
    const std::scoped_lock lock(mutex_);
    if (torn_) return error(StatusCode::kIo, "hub: the link to the leader is torn");
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string frame, writer_.frame(message));
    const Status sent = write_all(socket_, frame, deadline);
    if (sent.ok()) return {};
    torn_ = true;  // half a message may be out
    return error(StatusCode::kIo, sent.message());
  }

  Result<std::optional<std::string>> receive(const Deadline& deadline) override {
    for (;;) {
      Result<std::optional<std::string>> message = reader_.next();
      if (!message.ok()) return error(StatusCode::kIo, message.status().message());
      if (message->has_value()) return message;
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string bytes, read_some(socket_, std::size_t{1} << 16));
      reader_.append(bytes);
      // Only once nothing is left to be read: what the leader said last is whole.
      if (bytes.empty() && torn_) {
        return error(StatusCode::kIo, "hub: the link to the leader is torn");
      }
      if (bytes.empty() && !wait_for(socket_, POLLIN, deadline)) return message;
    }
  }

 private:
  const Socket socket_;
  std::mutex mutex_;  // of what is sent
  FrameWriter writer_;
  FrameReader reader_;
  std::atomic<bool> torn_ = false;
};

Result<std::unique_ptr<Link>> connect_by_tcp(const std::string& address, const std::string& token,
                                             const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(Socket socket, connect_to(address, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string hello,
                             read_all(socket, kServerHelloBytes, deadline));
  std::string expected;
  DRIFTLESS_ASSIGN_OR_RETURN(const Admission mine, answer_hello(token, hello, &expected));
  DRIFTLESS_RETURN_IF_ERROR(write_all(socket, mine.answer, deadline));
  const Result<std::string> proof = read_all(socket, kProofBytes, deadline);
  if (!proof.ok()) {
    return proof.status().with_context(
        concat("the leader at ", address, " did not admit us; is the token the same?"));
  }
  if (!same_proof(*proof, expected)) {
    return error(StatusCode::kInvalidArgument, "hub: what listens on ", address,
                 " does not know the run's token");
  }
  return std::unique_ptr<Link>(std::make_unique<TcpLink>(std::move(socket), mine.key));
}

}  // namespace

Result<std::unique_ptr<Hub>> make_tcp_hub(const HubOptions& options, std::string* bound) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, read_token(options.token_file));
  DRIFTLESS_ASSIGN_OR_RETURN(Socket listener, listen_on(options.address, bound));
  Socket wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (wake.get() < 0) return errno_status(errno, "eventfd");
  return std::unique_ptr<Hub>(
      std::make_unique<TcpHub>(std::move(listener), std::move(wake), std::move(token)));
}

Result<Connector> make_tcp_connector(const HubOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, read_token(options.token_file));
  return Connector([address = options.address, token = std::move(token)](const Deadline& deadline) {
    return connect_by_tcp(address, token, deadline);
  });
}

}  // namespace driftless::hub
