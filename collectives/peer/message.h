// SPDX-License-Identifier: Apache-2.0
// The small messages of the peer road. Over the hub: requests of other processes to the leading
// trainer rank, and its replies. On a data connection: a reader's request for bytes of a part, and
// the head of the answer. Messages from outside are checked completely before they are used.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road.h"

namespace driftless::peer {

// Whether a trainer rank serves through NIXL; kFast: over a fast network.
enum class NixlOffer : std::uint8_t { kNone, kThere, kFast };

// The rank number of a receiver that serves its kept chunks.
inline constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

// The address at which a trainer rank serves its parts, or a receiver its kept chunks.
struct Endpoint {
  std::uint32_t rank = 0;
  std::string tcp;     // "host:port"
  std::string socket;  // an abstract Unix socket's name; empty: no shared memory
  std::string host;    // host_identity() of the process
  NixlOffer nixl = NixlOffer::kNone;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// Receivers serve each other whole chunks of a part: kChunkBytes at a multiple of kChunkBytes; the
// last chunk may be shorter.
inline constexpr std::uint64_t kChunkBytes = std::uint64_t{64} << 10;
[[nodiscard]] inline std::uint64_t chunks_in(std::uint64_t part_bytes) {
  return part_bytes / kChunkBytes + static_cast<std::uint64_t>(part_bytes % kChunkBytes != 0);
}
[[nodiscard]] inline ByteRange chunk_at(std::uint64_t chunk, std::uint64_t part_bytes) {
  const std::uint64_t offset = chunk * kChunkBytes;
  return {offset, std::min(kChunkBytes, part_bytes - offset)};
}

enum class Ask : std::uint8_t {
  kHello,      // first on every link: ranks (0: a receiver), start, endpoint of a rank
  kRunInfo,    // reply: text
  kList,       // reply: ids
  kManifest,   // id; reply: text
  kEndpoints,  // id; reply: endpoints of all ranks, readers. kNotFound: not published (any more)
  kSources,    // id, name, text (hash), bytes (size) of a part, endpoint, Exchange; reply: sources
  kReport,     // id.version, name, text: proof, needs
  kLeave,      // name
  kEnd,        // reply: text, empty before the end of the run
  // Requests of trainer ranks.
  kBegin,      // id; reply: ids of the publications to keep
  kFlushed,    // id, bytes
  kPublished,  // id; reply: text: the hash of its manifest, or empty
  kLast = kPublished,
};

// A receiver's report about a part, and its request for bytes of it; tracker.h. All ranges are
// whole chunks.
struct Exchange {
  std::vector<ByteRange> kept = {};    // it serves these from now on
  std::vector<ByteRange> wanted = {};  // only these; earlier assignments end
  std::uint64_t most_bytes = 0;        // to assign from the trainer rank; as many from receivers
  // Sources that no longer have the bytes (gone), did not send them in time (late), or sent wrong
  // ones (damaged).
  std::vector<std::uint64_t> gone = {}, late = {}, damaged = {};

  friend bool operator==(const Exchange&, const Exchange&) = default;
};
inline constexpr std::uint64_t kMaxExchanged = std::uint64_t{1} << 12;  // ranges, or sources

// An assignment: the source from which a receiver reads ranges of a part.
struct Source {
  std::uint64_t number = 0;  // 0: the trainer rank, whose endpoint is omitted
  Endpoint from = {};
  std::vector<ByteRange> ranges = {};

  friend bool operator==(const Source&, const Source&) = default;
};

struct Request {
  Ask ask = Ask::kHello;
  std::uint64_t number = 0;  // of the request on its link; the reply repeats it
  std::uint32_t ranks = 0;
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
  PublicationId id = {};
  std::string name = {}, text = {}, needs = {};
  Endpoint endpoint = {};  // of a rank, or of a receiver; an empty tcp: the receiver serves nothing
  Exchange exchange = {};

  friend bool operator==(const Request&, const Request&) = default;
};

struct Reply {
  std::uint64_t number = 0;  // 0: the leader closes, and answers no more
  StatusCode code = StatusCode::kOk;
  std::string text = {};  // or the reason of the failure
  std::vector<PublicationId> ids = {};
  std::vector<Endpoint> endpoints = {};
  std::vector<Source> sources = {};
  std::uint32_t readers = 0;  // connected receivers

  friend bool operator==(const Reply&, const Reply&) = default;
};

// How a reader gets a part.
enum class Means : std::uint8_t {
  kBytes,        // the answer contains the bytes of the ranges, in order
  kDescriptor,   // a descriptor of the whole part's memory; on a Unix socket
  kPlace,        // a Place. The part stays for PeerOptions::stall, or until kDone
  kDone,         // the reader has finished with the place; no answer
  kChunkHashes,  // hashes of all chunks; the head of the answer has the hash of their bytes
};

struct Want {
  PublicationId id = {};
  std::string name = {};
  std::uint64_t size_bytes = 0;  // of the part
  Means by = Means::kBytes;
  std::vector<ByteRange> ranges = {};
  std::uint64_t known = 0;  // kPlace: Place::state of an earlier answer on the connection

  friend bool operator==(const Want&, const Want&) = default;
};
inline constexpr std::uint64_t kMaxRanges = std::uint64_t{1} << 20;

struct Answer {
  StatusCode code = StatusCode::kOk;
  std::string text = {};
  std::uint64_t bytes = 0;  // number of bytes that follow, except with kDescriptor

  friend bool operator==(const Answer&, const Answer&) = default;
};

// The place of a part on a trainer rank, for one-sided reads. Sent as a separate message after the
// Answer.
struct Place {
  std::uint64_t address = 0;
  std::uint64_t state = 0;       // changes whenever the rank's registrations change; never 0
  std::uint64_t removals = 0;    // changes when a registration is removed
  std::string description = {};  // NIXL's, of all registered memory; empty: the reader has it

  friend bool operator==(const Place&, const Place&) = default;
};
inline constexpr std::uint64_t kMaxDescriptionBytes = std::uint64_t{64} << 20;

[[nodiscard]] std::string to_bytes(const Request& message);
[[nodiscard]] std::string to_bytes(const Reply& message);
[[nodiscard]] std::string to_bytes(const Want& message);
[[nodiscard]] std::string to_bytes(const Answer& message);
[[nodiscard]] std::string to_bytes(const std::vector<Hash128>& hashes);
[[nodiscard]] std::string to_bytes(const Place& message);
// kCorrupt if the bytes are not what to_bytes() writes.
[[nodiscard]] Result<Request> parse_request(std::string_view bytes);
[[nodiscard]] Result<Reply> parse_reply(std::string_view bytes);
[[nodiscard]] Result<Want> parse_want(std::string_view bytes);
[[nodiscard]] Result<Answer> parse_answer(std::string_view bytes);
[[nodiscard]] Result<std::vector<Hash128>> parse_hashes(std::string_view bytes);
[[nodiscard]] Result<Place> parse_place(std::string_view bytes);

// Identifies this host for shared memory and abstract sockets: its boot and network namespace.
[[nodiscard]] std::string host_identity();

}  // namespace driftless::peer
