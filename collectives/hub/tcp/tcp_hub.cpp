// SPDX-License-Identifier: Apache-2.0
// The hub over TCP, and the links to it.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>

#include "collectives/hub/port.h"
#include "collectives/hub/tcp/authentication.h"
#include "collectives/hub/tcp/socket.h"

namespace driftless::hub {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kProofTime{5'000};  // for a connection to prove itself
// A connection has at least this time to prove itself. After that a new one may replace it if there
// are too many.
constexpr milliseconds kLeastProofTime{250};
constexpr milliseconds kFullPause{10};   // between checks while connections wait or finish
constexpr milliseconds kEndTime{1'000};  // for the last messages
// Limits for connections that have not proved the token: an eighth of the descriptors, within
// these.
constexpr std::size_t kLeastStrangers = 64, kMostStrangers = 512;
constexpr std::size_t kMostKnown = 4096;
// Limit for messages that peers have not read, and for incomplete messages, each over all peers:
// beyond it the peer with the most bytes is dropped.
constexpr std::size_t kMostQueuedBytes = 4 * kMaxMessageBytes;
constexpr std::size_t kMostUnfinishedBytes = 4 * kMaxMessageBytes;
constexpr std::size_t kSharedBytes = std::size_t{64} << 10;  // a shorter text is copied

std::size_t most_strangers() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return kLeastStrangers;
  return std::clamp<std::size_t>(files.rlim_cur / 8, kLeastStrangers, kMostStrangers);
}

// Bytes to be sent, counted once for any number of peers.
class Content {
 public:
  Content(std::string text, std::size_t& queued_bytes)
      : text_(std::move(text)), queued_bytes_(&queued_bytes) {
    queued_bytes += text_.size();
  }
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
  ~Content() { *queued_bytes_ -= text_.size(); }
  [[nodiscard]] std::string_view text() const { return text_; }

 private:
  const std::string text_;
  std::size_t* const queued_bytes_;
};
using SharedContent = std::shared_ptr<const Content>;

// A connection. It is a stranger until it has proved that it knows the token.
struct Connection {
  explicit Connection(Socket opened) : socket(std::move(opened)) {}
  Socket socket;
  Deadline prove_until = Deadline::after(kProofTime);
  Deadline may_stay_until = Deadline::after(kLeastProofTime);
  std::string nonce;  // this side's nonce
  std::string proof;  // the received bytes of the proof
  std::optional<FrameReader> reader;
  std::optional<FrameWriter> writer;
  std::deque<SharedContent> outgoing;
  std::size_t sent = 0;    // bytes of the first one already sent
  std::size_t unread = 0;  // bytes of all
  bool over = false;
  std::optional<Deadline> finish_until;  // if set, nothing is read any more
  [[nodiscard]] bool known() const { return reader.has_value(); }
  [[nodiscard]] std::size_t held_bytes() const { return known() ? reader->held_bytes() : 0; }
  void queue(SharedContent content) {
    unread += content->text().size();
    outgoing.push_back(std::move(content));
  }
  void end() {
    over = true;
    outgoing.clear();
    unread = 0;
  }
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
    const std::vector<std::uint64_t> ready = wait(deadline);
    std::vector<HubEvent> events;
    const std::scoped_lock lock(mutex_);
    for (const std::uint64_t peer : ready) serve(peer, connections_.at(peer), events);
    bound_unfinished();
    for (auto it = connections_.begin(); it != connections_.end();) {
      Connection& connection = it->second;
      if (!connection.known() && connection.prove_until.expired()) connection.end();
      if (connection.finish_until && is_finished(connection)) connection.end();
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
    if (found == connections_.end() || !found->second.known() || found->second.over) return;
    Connection& connection = found->second;
    Result<std::string> header = connection.writer->header(message);
    if (!header.ok()) {
      connection.end();
    } else if (message.size() < kSharedBytes) {
      connection.queue(content_of(std::move(header->append(message))));
    } else {
      connection.queue(content_of(std::move(*header)));
      connection.queue(shared(message));
    }
    flush(connection);
    bound_queued();
    if (connection.over || !connection.outgoing.empty()) wake();
  }

  void drop(std::uint64_t peer) override {
    const std::scoped_lock lock(mutex_);
    const auto found = connections_.find(peer);
    if (found == connections_.end()) return;
    found->second.end();
    wake();
  }

  void finish(std::uint64_t peer) override {
    const std::scoped_lock lock(mutex_);
    const auto found = connections_.find(peer);
    if (found == connections_.end() || found->second.finish_until) return;
    found->second.finish_until = Deadline::after(kEndTime);
    wake();
  }

 private:
  [[nodiscard]] static bool is_finished(Connection& connection) {
    flush(connection);
    return connection.finish_until->expired() ||
           (connection.outgoing.empty() && is_delivered(connection.socket));
  }
  [[nodiscard]] SharedContent content_of(std::string text) {
    return std::make_shared<const Content>(std::move(text), queued_bytes_);
  }
  // A message to many peers is sent to one after the other, so the last content is reused.
  [[nodiscard]] SharedContent shared(std::string_view text) {
    SharedContent content = last_shared_.lock();
    if (content == nullptr || content->text() != text) content = content_of(std::string(text));
    last_shared_ = content;
    return content;
  }

  void bound_queued() {
    while (queued_bytes_ > kMostQueuedBytes) {
      end_largest([](const Connection& each) { return each.unread; });
    }
  }
  void bound_unfinished() {
    const auto size = [](const Connection& each) { return each.held_bytes(); };
    std::size_t sum = 0;
    for (const auto& [peer, connection] : connections_) sum += size(connection);
    while (sum > kMostUnfinishedBytes) sum -= end_largest(size);
  }
  // Ends the connection with the largest `size`. Returns that size.
  std::size_t end_largest(std::size_t (*size)(const Connection&)) {
    const auto largest = std::ranges::max_element(connections_, {}, [&](const auto& each) {
      return each.second.over ? 0 : size(each.second);
    });
    const std::size_t ended = size(largest->second);
    largest->second.end();
    wake();
    return ended;
  }

  void wake() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
  }

  // The peers whose connections can be read, or can take bytes that wait to be sent.
  [[nodiscard]] std::vector<std::uint64_t> wait(const Deadline& deadline) {
    std::vector<pollfd> waits{{wake_.get(), POLLIN, 0}};
    std::vector<std::uint64_t> peers;
    long long longest = 1'000;
    {
      const std::scoped_lock lock(mutex_);
      for (const auto& [peer, connection] : connections_) {
        const bool writes = !connection.outgoing.empty();
        const int reads = connection.finish_until ? 0 : POLLIN;
        waits.push_back(
            {connection.socket.get(), static_cast<short>(reads | (writes ? POLLOUT : 0)), 0});
        peers.push_back(peer);
        if (connection.finish_until) longest = kFullPause.count();
      }
      // New connections wait in the listener's queue while there is no room.
      if (takes_one_more() && !out_of_descriptors_) {
        waits.push_back({listener_.get(), POLLIN, 0});
      } else {
        longest = kFullPause.count();
      }
    }
    const auto left = std::min<long long>(deadline.remaining().count(), longest);
    ::poll(waits.data(), waits.size(), static_cast<int>(left));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
    std::vector<std::uint64_t> ready;
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (waits[i + 1].revents != 0) ready.push_back(peers[i]);
    }
    return ready;
  }

  struct Strangers {
    std::size_t count = 0;
    Connection* oldest = nullptr;
  };
  [[nodiscard]] Strangers strangers() {
    Strangers found;
    for (auto& [peer, connection] : connections_) {  // in the order of their arrival
      if (connection.known() || connection.over) continue;
      if (found.count++ == 0) found.oldest = &connection;
    }
    return found;
  }

  // Whether one more connection may be accepted: there is room, or the oldest stranger has had its
  // time and can be dropped. Proved connections are never dropped for that.
  [[nodiscard]] bool takes_one_more() {
    const Strangers now = strangers();
    if (connections_.size() - now.count >= kMostKnown) return false;
    return now.count < most_strangers_ || now.oldest->may_stay_until.expired();
  }

  void accept_all() {
    out_of_descriptors_ = false;
    while (takes_one_more()) {
      Result<Socket> socket = accept_one(listener_);
      const Strangers now = strangers();
      out_of_descriptors_ = !socket.ok();
      const bool full = out_of_descriptors_ || now.count >= most_strangers_;
      if (socket.ok() && socket->get() < 0) return;
      if (full && now.count > 0 && now.oldest->may_stay_until.expired()) now.oldest->end();
      if (!socket.ok()) return;
      Connection connection(std::move(*socket));
      const Result<std::string> nonce = new_nonce();
      if (!nonce.ok()) continue;
      connection.nonce = *nonce;
      connection.queue(content_of(concat(kGreeting, *nonce)));
      flush(connection);
      connections_.emplace(++last_peer_, std::move(connection));
    }
  }

  static void flush(Connection& connection) {
    while (!connection.outgoing.empty()) {
      const std::string_view text = connection.outgoing.front()->text();
      const Result<std::size_t> put = write_some(connection.socket, text.substr(connection.sent));
      if (!put.ok()) return connection.end();
      connection.sent += *put;
      if (connection.sent < text.size()) return;
      connection.unread -= text.size();
      connection.sent = 0;
      connection.outgoing.pop_front();
    }
  }

  void serve(std::uint64_t peer, Connection& connection, std::vector<HubEvent>& events) {
    flush(connection);
    if (connection.finish_until) return;
    for (int rounds = 0; rounds < 64 && !connection.over; ++rounds) {
      const std::size_t most =
          connection.known() ? std::size_t{64} << 10 : kClientProofBytes - connection.proof.size();
      const Result<std::string> bytes = read_some(connection.socket, most);
      if (!bytes.ok()) connection.end();
      if (!bytes.ok() || bytes->empty()) return;
      if (connection.known()) {
        connection.reader->append(*bytes);
        take_messages(peer, connection, events);
      } else if (accept_proof(connection, *bytes)) {
        events.push_back({HubEvent::Kind::kCame, peer, {}});
      }
    }
  }

  // Returns whether the connection is proved now.
  bool accept_proof(Connection& connection, std::string_view bytes) {
    connection.proof += bytes;
    if (connection.proof.size() < kClientProofBytes) return false;
    const Result<Admission> admitted = admit(token_, connection.nonce, connection.proof);
    if (!admitted.ok()) {
      connection.end();
      return false;
    }
    connection.reader.emplace(admitted->key, Direction::kToServer);
    connection.writer.emplace(admitted->key, Direction::kToClient);
    connection.queue(content_of(admitted->answer));
    flush(connection);
    return true;
  }

  static void take_messages(std::uint64_t peer, Connection& connection,
                            std::vector<HubEvent>& events) {
    for (;;) {
      Result<std::optional<std::string>> message = connection.reader->next();
      if (!message.ok()) connection.end();
      if (!message.ok() || !message->has_value()) return;
      events.push_back({HubEvent::Kind::kMessage, peer, std::move(**message)});
    }
  }

  const Socket listener_;
  const Socket wake_;
  const std::string token_;
  const std::size_t most_strangers_ = most_strangers();
  std::mutex mutex_;
  std::size_t queued_bytes_ = 0;  // of contents that connections hold
  std::weak_ptr<const Content> last_shared_;
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t last_peer_ = 0;
  bool out_of_descriptors_ = false;
};

// The side of all other processes.
class TcpLink final : public Link {
 public:
  TcpLink(Socket socket, const std::string& key)
      : socket_(std::move(socket)),
        writer_(key, Direction::kToServer),
        reader_(key, Direction::kToClient) {}

  Status send(std::string_view message, const Deadline& deadline) override {
    const std::scoped_lock lock(mutex_);
    if (torn_) return error(StatusCode::kIo, "hub: the link to the leader is broken");
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string frame, writer_.frame(message));
    const Status sent = write_all(socket_, frame, deadline);
    if (sent.ok()) return {};
    torn_ = true;  // half a message may have been sent
    return error(StatusCode::kIo, sent.message());
  }

  Result<std::optional<std::string>> receive(const Deadline& deadline) override {
    for (;;) {
      Result<std::optional<std::string>> message = reader_.next();
      if (!message.ok()) return error(StatusCode::kIo, message.status().message());
      if (message->has_value()) return message;
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string bytes, read_some(socket_, std::size_t{1} << 16));
      reader_.append(bytes);
      // Checked after everything was read, because the leader's last messages are still valid.
      if (bytes.empty() && torn_) {
        return error(StatusCode::kIo, "hub: the link to the leader is broken");
      }
      if (bytes.empty() && !wait_for(socket_, POLLIN, deadline)) return message;
    }
  }

 private:
  const Socket socket_;
  std::mutex mutex_;  // protects sending
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
        concat("the leader at ", address, " refused this process; is the token the same?"));
  }
  if (!same_proof(*proof, expected)) {
    return error(StatusCode::kInvalidArgument, "hub: the process that listens on ", address,
                 " does not have the run's token");
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

std::shared_ptr<Port> make_tcp_port(const HubOptions& options, std::string* bound) {
  return std::make_shared<Port>([options, bound] { return make_tcp_hub(options, bound); },
                                [options] { return make_tcp_connector(options); });
}

Result<Connector> make_tcp_connector(const HubOptions& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, read_token(options.token_file));
  return Connector([address = options.address, token = std::move(token)](const Deadline& deadline) {
    return connect_by_tcp(address, token, deadline);
  });
}

}  // namespace driftless::hub
