// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/part_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "collectives/hub/tcp/authentication.h"

namespace driftless::peer {
namespace {

using hub::Socket;
using std::chrono::milliseconds;

constexpr milliseconds kProofTime{5'000};  // for a connection to prove itself
constexpr milliseconds kIdleTime{250};     // after which a connection may be ended for another one
constexpr std::size_t kMostStrangers = 64;
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // between two checks of the time

struct LocalAddress {
  sockaddr_un address{};
  socklen_t size = 0;
};

Result<LocalAddress> local_address(const std::string& name) {
  LocalAddress made;
  made.address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof(made.address.sun_path)) {
    return error(StatusCode::kInvalidArgument, "peer: a socket's name of ", name.size(), " bytes");
  }
  // A name with a leading zero byte is in no file system.
  std::memcpy(made.address.sun_path + 1, name.data(), name.size());
  made.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return made;
}

Result<Socket> listen_locally(const std::string& name) {
  DRIFTLESS_ASSIGN_OR_RETURN(const LocalAddress at, local_address(name));
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid() ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0 ||
      ::listen(socket.get(), 1024) != 0) {
    return errno_status(errno, "peer: listening on a local socket");
  }
  return socket;
}

// Sends one byte with the descriptor.
Status send_descriptor(const Socket& socket, const Descriptor& file, const Deadline& deadline) {
  char byte = 'd';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = file.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  for (;;) {
    if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) == 1) return {};
    if (errno != EAGAIN && errno != EINTR) return errno_status(errno, "peer: passing a descriptor");
    if (!hub::wait_for(socket, POLLOUT, deadline)) {
      return deadline.check("peer: passing a descriptor");
    }
  }
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Answer refusal(const Status& why) { return {why.code(), std::string(why.message()), 0}; }

// The answer to `want`. Sets `content` if bytes follow it that are not bytes of the part.
Answer answer_to(const Want& want, const StoredPart* part, std::string* content) {
  if (part == nullptr) return refusal(not_there("peer", want.id));
  if (part->size_bytes != want.size_bytes) {
    return refusal(error(StatusCode::kIncomplete, "peer: part '", want.name, "' of ",
                         to_string(want.id), " has ", part->size_bytes, " bytes, expected ",
                         want.size_bytes));
  }
  Answer answer;
  if (want.by == Means::kChunkHashes) {
    if (part->chunks != nullptr) return refusal(not_there("peer", want.id));
    *content = to_bytes(part->chunk_hashes());
    answer.text = to_hex(xxh3_128(*content));
    answer.bytes = content->size();
    return answer;
  }
  for (const ByteRange& range : want.ranges) {
    const bool inside =
        range.offset <= part->size_bytes && range.size_bytes <= part->size_bytes - range.offset;
    if (!inside) {
      return refusal(error(StatusCode::kCorrupt, "peer: a range leaves part '", want.name, "'"));
    }
    if (part->chunks != nullptr && !part->chunks->covers(range)) {
      return refusal(not_there("peer", want.id));
    }
    answer.bytes += range.size_bytes;
  }
  return answer;
}

}  // namespace

Result<std::string> data_token(const std::string& token_file) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string token, hub::read_token(token_file));
  return hub::prove(token, "driftless peer data");
}

Result<Socket> connect_to_local(const std::string& name, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const LocalAddress at, local_address(name));
  Backoff backoff(milliseconds(1), milliseconds(20));
  for (;;) {
    Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.valid()) return errno_status(errno, "peer: a local socket");
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0) {
      return socket;
    }
    if (errno != EAGAIN && errno != EINTR) {  // otherwise its queue is full
      return errno_status(errno, "peer: connecting to a trainer rank of this host");
    }
    if (!backoff.sleep(deadline)) return deadline.check("peer: connecting on this host");
  }
}

PartServer::PartServer(const PeerOptions& options, Endpoint endpoint, std::string token,
                       std::vector<Socket> listeners, Descriptor wake,
                       std::shared_ptr<PartStore> store, std::unique_ptr<NixlPlaces> nixl)
    : options_(options),
      endpoint_(std::move(endpoint)),
      token_(std::move(token)),
      listeners_(std::move(listeners)),
      wake_(std::move(wake)),
      store_(std::move(store)),
      nixl_(std::move(nixl)),
      thread_([this] { accept_all(); }) {}

PartServer::~PartServer() {
  stop_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
  thread_.join();
  for (Connection& each : connections_) ::shutdown(each.socket.get(), SHUT_RDWR);
  for (Connection& each : connections_) each.thread.join();
}

void PartServer::accept_all() {
  while (!stop_) {
    std::vector<pollfd> waits;
    for (const Socket& each : listeners_) waits.push_back({each.get(), POLLIN, 0});
    waits.push_back({wake_.get(), POLLIN, 0});
    const bool room = make_room();
    const int ready = ::poll(waits.data(), waits.size(), room ? 1'000 : 10);
    if (!room && ready > 0) {  // new connections wait in the listeners' queues
      end_idle();
      std::this_thread::sleep_for(milliseconds(10));
    }
    for (std::size_t i = 0; room && i < listeners_.size(); ++i) {
      if ((waits[i].revents & POLLIN) == 0) continue;
      Result<Socket> accepted = hub::accept_one(listeners_[i]);
      if (!accepted.ok()) std::this_thread::sleep_for(milliseconds(10));  // no free descriptor
      if (!accepted.ok() || !accepted->valid()) continue;
      const std::scoped_lock lock(mutex_);
      Connection& made = connections_.emplace_back();
      made.socket = std::move(*accepted);
      made.local = i > 0;
      try {
        made.thread = std::thread([this, &made] { serve(made); });
      } catch (const std::system_error&) {
        connections_.pop_back();
      }
    }
  }
}

// Whether one more connection may be accepted; ends finished ones, and the oldest stranger if there
// are too many.
bool PartServer::make_room() {
  std::list<Connection> ended;
  bool room = false;
  {
    const std::scoped_lock lock(mutex_);
    std::size_t strangers = 0, readers = 0;
    Connection* oldest = nullptr;
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto here = it++;
      if (here->over) {
        ended.splice(ended.end(), connections_, here);
      } else if (here->admitted) {
        ++readers;
      } else if (strangers++ == 0) {
        oldest = &*here;
      }
    }
    room = readers < options_.readers && strangers < kMostStrangers;
    if (readers < options_.readers && strangers >= kMostStrangers &&
        oldest->may_stay_until.expired()) {
      ::shutdown(oldest->socket.get(), SHUT_RDWR);
    }
  }
  for (Connection& each : ended) each.thread.join();
  return room;
}

// A reader without requests can connect again when it has one.
void PartServer::end_idle() {
  const std::scoped_lock lock(mutex_);
  Connection* longest = nullptr;
  for (Connection& each : connections_) {
    const bool idle = each.admitted && !each.over && each.idle_since &&
                      Deadline::Clock::now() - *each.idle_since > kIdleTime;
    if (idle && (longest == nullptr || *each.idle_since < *longest->idle_since)) longest = &each;
  }
  if (longest != nullptr) ::shutdown(longest->socket.get(), SHUT_RDWR);
}

void PartServer::note_idle(Connection& connection, bool idle) {
  const std::scoped_lock lock(mutex_);
  if (idle == connection.idle_since.has_value()) return;
  connection.idle_since = idle ? std::optional(Deadline::Clock::now()) : std::nullopt;
}

void PartServer::serve(Connection& connection) {
  std::string key;
  if (admit(connection, &key).ok()) static_cast<void>(serve_requests(connection, key));
  ::shutdown(connection.socket.get(), SHUT_RDWR);
  const std::scoped_lock lock(mutex_);
  connection.over = true;
}

Status PartServer::admit(Connection& connection, std::string* key) {
  const Deadline deadline = Deadline::after(kProofTime);
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string nonce, hub::new_nonce());
  DRIFTLESS_RETURN_IF_ERROR(
      hub::write_all(connection.socket, concat(hub::kGreeting, nonce), deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string proof,
                             hub::read_all(connection.socket, hub::kClientProofBytes, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const hub::Admission admitted, hub::admit(token_, nonce, proof));
  DRIFTLESS_RETURN_IF_ERROR(hub::write_all(connection.socket, admitted.answer, deadline));
  *key = admitted.key;
  const std::scoped_lock lock(mutex_);
  connection.admitted = true;
  return {};
}

Status PartServer::serve_requests(Connection& connection, const std::string& key) {
  hub::FrameReader reader(key, hub::Direction::kToServer);
  hub::FrameWriter writer(key, hub::Direction::kToClient);
  std::shared_ptr<const StoredPart> kept;  // the part that the reader reads by itself
  Deadline kept_until = Deadline::after(options_.stall);
  while (!stop_) {
    if (kept_until.expired()) kept.reset();
    DRIFTLESS_ASSIGN_OR_RETURN(const std::optional<std::string> request, reader.next());
    if (!request) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string bytes,
                                 hub::read_some(connection.socket, std::size_t{64} << 10));
      reader.append(bytes);
      if (bytes.empty()) {
        note_idle(connection, true);
        static_cast<void>(
            hub::wait_for(connection.socket, POLLIN, Deadline::after(milliseconds(200))));
      }
      continue;
    }
    note_idle(connection, false);
    DRIFTLESS_ASSIGN_OR_RETURN(const Want want, parse_want(*request));
    kept.reset();
    if (want.by == Means::kDone) continue;
    const std::shared_ptr<const StoredPart> part = store_->find(want.id, want.name);
    std::string content;
    Answer answer = answer_to(want, part.get(), &content);
    std::string place;
    if (answer.code == StatusCode::kOk && want.by == Means::kPlace) {
      kept = part;
      kept_until = Deadline::after(options_.stall);
      Result<std::string> found = place_of(want, *part);
      if (found.ok()) place = std::move(*found);
      if (!found.ok()) answer = refusal(found.status());
    }
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string head, writer.frame(to_bytes(answer)));
    const Deadline soon = Deadline::after(options_.stall);
    DRIFTLESS_RETURN_IF_ERROR(hub::write_all(connection.socket, head, soon));
    if (answer.code != StatusCode::kOk) continue;
    if (!place.empty()) {
      DRIFTLESS_ASSIGN_OR_RETURN(const std::string frame, writer.frame(place));
      DRIFTLESS_RETURN_IF_ERROR(hub::write_all(connection.socket, frame, soon));
      continue;
    }
    if (want.by == Means::kChunkHashes) {
      DRIFTLESS_RETURN_IF_ERROR(hub::write_all(connection.socket, content, soon));
      continue;
    }
    DRIFTLESS_RETURN_IF_ERROR(send_part(connection, want, *part));
  }
  return {};
}

Result<std::string> PartServer::place_of(const Want& want, const StoredPart& part) {
  if (nixl_ == nullptr) {
    return error(StatusCode::kUnsupported, "peer: trainer rank ", endpoint_.rank,
                 " does not serve by NIXL");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Place place, nixl_->place_of(part, want.known));
  return to_bytes(place);
}

Status PartServer::send_part(const Connection& connection, const Want& want,
                             const StoredPart& part) {
  if (want.by == Means::kDescriptor && connection.local && part.size_bytes > 0) {
    part.shared = true;
    return send_descriptor(connection.socket, part.memory.descriptor(),
                           Deadline::after(options_.stall));
  }
  for (const ByteRange& range : want.ranges) {
    std::string_view bytes = text_of(part.bytes().subspan(range.offset, range.size_bytes));
    for (; !bytes.empty(); bytes.remove_prefix(std::min(bytes.size(), kPieceBytes))) {
      DRIFTLESS_RETURN_IF_ERROR(hub::write_all(connection.socket, bytes.substr(0, kPieceBytes),
                                               Deadline::after(options_.stall)));
    }
  }
  return {};
}

Result<std::unique_ptr<PartServer>> make_part_server(const PeerOptions& options, unsigned rank,
                                                     const std::string& reached_by,
                                                     std::shared_ptr<PartStore> store) {
  DRIFTLESS_ASSIGN_OR_RETURN(std::string token, data_token(options.hub.token_file));
  const std::string address = options.address.empty() ? concat(reached_by, ":0") : options.address;
  Endpoint endpoint{.rank = rank, .tcp = {}, .socket = {}, .host = host_identity()};
  std::vector<Socket> listeners;
  DRIFTLESS_ASSIGN_OR_RETURN(listeners.emplace_back(), hub::listen_on(address, &endpoint.tcp));
  DRIFTLESS_ASSIGN_OR_RETURN(std::unique_ptr<NixlPlaces> nixl,
                             make_nixl_places(options, &endpoint.nixl));
  if (options.carrier == PeerCarrier::kAuto || options.carrier == PeerCarrier::kShm) {
    endpoint.socket = concat("driftless-", to_hex(random_hash128()));
    DRIFTLESS_ASSIGN_OR_RETURN(listeners.emplace_back(), listen_locally(endpoint.socket));
  }
  Descriptor wake(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!wake.valid()) return errno_status(errno, "eventfd");
  try {
    return std::make_unique<PartServer>(options, std::move(endpoint), std::move(token),
                                        std::move(listeners), std::move(wake), std::move(store),
                                        std::move(nixl));
  } catch (const std::system_error& failure) {
    return error(StatusCode::kIo, "peer: no thread to serve parts: ", failure.what());
  }
}

}  // namespace driftless::peer
