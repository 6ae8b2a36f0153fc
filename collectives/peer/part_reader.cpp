// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/part_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "collectives/part_ranges.h"
#include "collectives/peer/part_server.h"

namespace driftless::peer {
namespace {

using hub::Socket;
using std::chrono::milliseconds;

constexpr milliseconds kConnectTime{10'000};
constexpr std::size_t kHeadBytes = sizeof(std::uint64_t) + hub::kProofBytes;
constexpr std::uint64_t kMaxAnswerBytes = 8192;

Result<hub::Admission> prove_to(const Socket& socket, const std::string& token,
                                const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string hello,
                             hub::read_all(socket, hub::kServerHelloBytes, deadline));
  std::string expected;
  DRIFTLESS_ASSIGN_OR_RETURN(hub::Admission mine, hub::answer_hello(token, hello, &expected));
  DRIFTLESS_RETURN_IF_ERROR(hub::write_all(socket, mine.answer, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string proof,
                             hub::read_all(socket, hub::kProofBytes, deadline));
  if (hub::same_proof(proof, expected)) return mine;
  return error(StatusCode::kInvalidArgument,
               "peer: the process that serves there does not have the token");
}

Result<Descriptor> receive_descriptor(const Socket& socket, const Deadline& deadline) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  for (;;) {
    const ssize_t got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
    if (got == 1) break;
    if (got == 0) return error(StatusCode::kIo, "peer: the trainer rank closed the connection");
    if (errno != EAGAIN && errno != EINTR) return errno_status(errno, "peer: taking a descriptor");
    if (!hub::wait_for(socket, POLLIN, deadline)) return deadline.check("peer: a descriptor");
  }
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int))) {
    return error(StatusCode::kCorrupt, "peer: an answer without the descriptor");
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return Descriptor(fd);
}

// Maps the whole part for reading. The memory cannot shrink, so no later access fails.
Result<MappedFile> map(const Descriptor& file, const PartReceipt& part) {
  struct stat info{};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (::fstat(file.get(), &info) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
      static_cast<std::uint64_t>(info.st_size) < part.size_bytes) {
    return error(StatusCode::kCorrupt, "peer: the memory of part '", part.name,
                 "' is not as a trainer rank makes it");
  }
  void* const at = ::mmap(nullptr, part.size_bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return errno_status(errno, concat("peer: mapping part '", part.name, "'"));
  const std::shared_ptr<const void> owner(
      at, [size = part.size_bytes](const void* data) { ::munmap(const_cast<void*>(data), size); });
  return MappedFile(part.name, owner,
                    {static_cast<const std::byte*>(at), static_cast<std::size_t>(part.size_bytes)});
}

}  // namespace

Result<PeerCarrier> PartReader::carrier_to(const Endpoint& to) {
  const PeerCarrier wanted = options_.carrier;
  const bool here = !to.socket.empty() && !host_.empty() && to.host == host_;
  const bool automatic = wanted == PeerCarrier::kAuto;
  if (here && (automatic || wanted == PeerCarrier::kShm)) return PeerCarrier::kShm;
  if (wanted == PeerCarrier::kShm) {
    return error(StatusCode::kUnsupported, "peer: trainer rank ", to.rank,
                 " is on another host, or serves no shared memory; set road.peer.carrier: auto");
  }
  const bool fast = to.nixl == NixlOffer::kFast && has_fast_network();
  const bool offered = to.nixl != NixlOffer::kNone;
  if (wanted == PeerCarrier::kTcp || (automatic && !fast)) return PeerCarrier::kTcp;
  if (!offered) {
    return error(StatusCode::kUnsupported, "peer: trainer rank ", to.rank,
                 " does not serve by NIXL; set road.peer.carrier: nixl there, too, or auto here");
  }
  if (nixl_ == nullptr && !std::exchange(nixl_looked_for_, automatic)) {
    auto made = NixlReader::make(options_);
    if (made.ok()) nixl_ = std::move(*made);
    if (!made.ok() && !automatic) return made.status();
  }
  return nixl_ == nullptr ? PeerCarrier::kTcp : PeerCarrier::kNixl;
}

Result<PartReader::Connection*> PartReader::connect(const Endpoint& to, const Deadline& deadline) {
  const auto found = connections_.find(to.rank);
  if (found != connections_.end() && found->second.to == to) return &found->second;
  connections_.erase(to.rank);
  DRIFTLESS_ASSIGN_OR_RETURN(const PeerCarrier carrier, carrier_to(to));
  const Deadline slice = deadline.sooner(kConnectTime);
  DRIFTLESS_ASSIGN_OR_RETURN(Socket socket, carrier == PeerCarrier::kShm
                                                ? connect_to_local(to.socket, slice)
                                                : hub::connect_to(to.tcp, slice));
  DRIFTLESS_ASSIGN_OR_RETURN(const hub::Admission admitted, prove_to(socket, token_, slice));
  const auto made =
      connections_.try_emplace(to.rank, Connection{to,
                                                   carrier,
                                                   std::move(socket),
                                                   {admitted.key, hub::Direction::kToServer},
                                                   {admitted.key, hub::Direction::kToClient}});
  if (nixl_ != nullptr) nixl_->connected(to.rank);
  return &made.first->second;
}

// Reads the next message and no byte after it: bytes of parts are not in messages.
Result<std::string> PartReader::next_message(Connection& connection, std::uint64_t most,
                                             const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string head,
                             hub::read_all(connection.socket, kHeadBytes, deadline));
  std::uint64_t size = 0;
  std::memcpy(&size, head.data(), sizeof(size));
  if (size > most) {
    return error(StatusCode::kCorrupt, "peer: the head of an answer cannot have ", size, " bytes");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string rest,
                             hub::read_all(connection.socket, size, deadline));
  connection.reader.append(head);
  connection.reader.append(rest);
  DRIFTLESS_ASSIGN_OR_RETURN(std::optional<std::string> content, connection.reader.next());
  if (!content) return error(StatusCode::kCorrupt, "peer: an answer's head is malformed");
  return std::move(*content);
}

Result<Answer> PartReader::ask(Connection& connection, const Want& want, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string frame, connection.writer.frame(to_bytes(want)));
  DRIFTLESS_RETURN_IF_ERROR(hub::write_all(connection.socket, frame, deadline));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string content,
                             next_message(connection, kMaxAnswerBytes, deadline));
  return parse_answer(content);
}

template <typename Got, typename Read>
Result<Got> PartReader::read_by_nixl(Connection& connection, const Want& want,
                                     const Deadline& deadline, const Read& read) {
  Want place = want;
  const NixlReader::AskPlace ask_place = [&](std::uint64_t known) -> Result<Place> {
    place.known = known;
    const Deadline soon = deadline.sooner(options_.stall);
    DRIFTLESS_ASSIGN_OR_RETURN(const Answer answer, ask(connection, place, soon));
    if (answer.code != StatusCode::kOk) return Status(answer.code, answer.text);
    DRIFTLESS_ASSIGN_OR_RETURN(const std::string content,
                               next_message(connection, kMaxDescriptionBytes + 64, soon));
    return parse_place(content);
  };
  DRIFTLESS_ASSIGN_OR_RETURN(Got got, read(ask_place));
  // The rank need not keep the part any longer.
  place.by = Means::kDone;
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string done, connection.writer.frame(to_bytes(place)));
  static_cast<void>(hub::write_all(connection.socket, done, deadline.sooner(options_.stall)));
  return got;
}

Result<std::vector<MappedFile>> PartReader::read_over(Connection& connection, const Want& want,
                                                      const PartReceipt& part,
                                                      const Deadline& deadline) {
  const RangePlaces places(want.ranges);
  const Deadline soon = deadline.sooner(options_.stall);
  DRIFTLESS_ASSIGN_OR_RETURN(const Answer answer, ask(connection, want, soon));
  if (answer.code != StatusCode::kOk) return Status(answer.code, answer.text);
  if (want.by == Means::kDescriptor) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Descriptor file, receive_descriptor(connection.socket, soon));
    DRIFTLESS_ASSIGN_OR_RETURN(const MappedFile whole, map(file, part));
    return slices(whole, want.ranges);
  }
  std::uint64_t expected = 0;
  for (const ByteRange& range : want.ranges) expected += range.size_bytes;
  if (answer.bytes != expected) {
    return error(StatusCode::kCorrupt, "peer: an answer of ", answer.bytes,
                 " bytes to a request for ", expected, " of part '", part.name, "'");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::shared_ptr<ReadLease> memory,
      memory_->take(places.total_bytes(), concat("peer: part '", part.name, "'")));
  for (std::size_t i = 0; i < want.ranges.size(); ++i) {
    DRIFTLESS_RETURN_IF_ERROR(hub::read_into(
        connection.socket, places.of(i, memory->bytes().data()), deadline, options_.stall));
  }
  return places.files(part.name, memory, memory->bytes().data());
}

Result<std::vector<Hash128>> PartReader::hashes_over(Connection& connection, const Want& want,
                                                     const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Answer answer,
                             ask(connection, want, deadline.sooner(options_.stall)));
  if (answer.code != StatusCode::kOk) return Status(answer.code, answer.text);
  const std::uint64_t count = chunks_in(want.size_bytes);
  if (answer.bytes != sizeof(std::uint64_t) + count * sizeof(Hash128)) {
    return error(StatusCode::kCorrupt, "peer: ", answer.bytes, " bytes of hashes for ", count,
                 " chunks");
  }
  std::string bytes(answer.bytes, '\0');
  DRIFTLESS_RETURN_IF_ERROR(hub::read_into(
      connection.socket, std::as_writable_bytes(std::span(bytes)), deadline, options_.stall));
  if (to_hex(xxh3_128(bytes)) != answer.text) {
    return error(StatusCode::kCorrupt, "peer: damaged hashes of part '", want.name, "'");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<Hash128> hashes, parse_hashes(bytes));
  if (hashes.size() == count) return hashes;
  return error(StatusCode::kCorrupt, "peer: hashes of another number of chunks");
}

// Uses an existing connection, or a new one.
template <typename Got, typename Over>
Result<Got> PartReader::exchange(const Endpoint& from, const Deadline& deadline, const Over& over) {
  const bool had = connections_.contains(from.rank);
  for (bool again = had;; again = false) {
    DRIFTLESS_ASSIGN_OR_RETURN(Connection* const connection, connect(from, deadline));
    Result<Got> got = over(*connection);
    const bool shm = connection->carrier == PeerCarrier::kShm;
    const StatusCode code = got.status().code();
    const bool refused = code == StatusCode::kNotFound || code == StatusCode::kIncomplete ||
                         code == StatusCode::kBusy;
    if (got.ok() || refused) return got;
    connections_.erase(from.rank);  // its unread bytes belong to this answer
    // The connection was an old one: tries a new one.
    if (again && code == StatusCode::kIo && !deadline.expired()) continue;
    const std::string who =
        from.rank == kNoRank ? std::string("another rollout") : concat("trainer rank ", from.rank);
    return got.status().with_context(
        concat("reading from ", who, " at ", shm ? "this host" : from.tcp));
  }
}

Result<std::vector<MappedFile>> PartReader::read(const Endpoint& from, const PublicationId& id,
                                                 const PartReceipt& part,
                                                 std::span<const ByteRange> ranges,
                                                 const Deadline& deadline) {
  Want want{.id = id, .name = part.name, .size_bytes = part.size_bytes};
  return exchange<std::vector<MappedFile>>(from, deadline, [&](Connection& connection) {
    const PeerCarrier carrier = connection.carrier;
    const bool any = part.size_bytes > 0;
    want.by = any && carrier == PeerCarrier::kShm    ? Means::kDescriptor
              : any && carrier == PeerCarrier::kNixl ? Means::kPlace
                                                     : Means::kBytes;
    if (want.by != Means::kPlace) want.ranges.assign(ranges.begin(), ranges.end());
    Result<std::vector<MappedFile>> got =
        want.by == Means::kPlace
            ? read_by_nixl<std::vector<MappedFile>>(
                  connection, want, deadline,
                  [&](const NixlReader::AskPlace& ask_place) {
                    return nixl_->read(from.rank, want.name, ranges, ask_place, deadline);
                  })
            : read_over(connection, want, part, deadline);
    if (got.ok()) carrier_ = carrier;
    return got;
  });
}

Result<bool> PartReader::read_to_device(const Endpoint& from, const PublicationId& id,
                                        const PartReceipt& part,
                                        std::span<const DeviceRange> ranges,
                                        const DeviceSpace& space, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const PeerCarrier carrier, carrier_to(from));
  if (carrier != PeerCarrier::kNixl || !nixl_->takes(space) || part.size_bytes == 0) return false;
  const Want want{.id = id, .name = part.name, .size_bytes = part.size_bytes, .by = Means::kPlace};
  return exchange<bool>(from, deadline, [&](Connection& connection) {
    Result<bool> got = read_by_nixl<bool>(
        connection, want, deadline, [&](const NixlReader::AskPlace& ask_place) -> Result<bool> {
          DRIFTLESS_RETURN_IF_ERROR(
              nixl_->read_to_device(from.rank, want.name, ranges, space, ask_place, deadline));
          return true;
        });
    if (got.ok()) carrier_ = carrier;
    return got;
  });
}

Result<std::vector<Hash128>> PartReader::chunk_hashes(const Endpoint& from, const PublicationId& id,
                                                      const PartReceipt& part,
                                                      const Deadline& deadline) {
  const Want want{
      .id = id, .name = part.name, .size_bytes = part.size_bytes, .by = Means::kChunkHashes};
  return exchange<std::vector<Hash128>>(from, deadline, [&](Connection& connection) {
    return hashes_over(connection, want, deadline);
  });
}

}  // namespace driftless::peer
