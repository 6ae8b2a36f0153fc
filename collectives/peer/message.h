// SPDX-License-Identifier: Apache-2.0
// The small messages of the peer road. Over the hub: requests of other processes to the leading
// trainer rank, and its replies. On a connection for data: what a reader wants of a part, and the
// head of the answer. What comes from outside is checked whole before it is used.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road.h"

namespace driftless::peer {

// Whether a trainer rank serves by NIXL; kFast: over a fast network.
enum class NixlOffer : std::uint8_t { kNone, kThere, kFast };

// Where a trainer rank serves its parts.
struct Endpoint {
  std::uint32_t rank = 0;
  std::string tcp;     // "host:port"
  std::string socket;  // an abstract Unix socket's name; empty: no shared memory
  std::string host;    // host_identity() of the process
  NixlOffer nixl = NixlOffer::kNone;

  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

enum class Ask : std::uint8_t {
  kHello,      // first on every link: ranks (0: a receiver), start, endpoint of a rank
  kRunInfo,    // reply: text
  kList,       // reply: ids
  kManifest,   // id; reply: text
  kEndpoints,  // id; reply: endpoints, of all ranks. kNotFound if it is not published (any more)
  kReport,     // id.version, name, text: proof, needs
  kLeave,      // name
  kEnd,        // reply: text, empty before the end of the run
  // Of trainer ranks.
  kBegin,      // id; reply: ids that stay
  kFlushed,    // id, bytes
  kPublished,  // id; reply: text: the hash of its manifest, or empty
  kLast = kPublished,
};

struct Request {
  Ask ask = Ask::kHello;
  std::uint64_t number = 0;  // of the request on its link; the reply has the same
  std::uint32_t ranks = 0;
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
  PublicationId id = {};
  std::string name = {}, text = {}, needs = {};
  Endpoint endpoint = {};

  friend bool operator==(const Request&, const Request&) = default;
};

struct Reply {
  std::uint64_t number = 0;  // 0: the leader closes, and answers nobody any more
  StatusCode code = StatusCode::kOk;
  std::string text = {};  // or why not
  std::vector<PublicationId> ids = {};
  std::vector<Endpoint> endpoints = {};

  friend bool operator==(const Reply&, const Reply&) = default;
};

// How a reader wants a part.
enum class Means : std::uint8_t {
  kBytes,       // of the ranges, which follow each other in the answer
  kDescriptor,  // of the whole part's memory; on a Unix socket
  kPlace,       // the answer brings a Place. The part stays for PeerOptions::stall, or until kDone
  kDone,        // with the place; no answer
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
  std::uint64_t bytes = 0;  // that follow

  friend bool operator==(const Answer&, const Answer&) = default;
};

// Where a part lies on a trainer rank, for one-sided reads. A message of its own after the Answer.
struct Place {
  std::uint64_t address = 0;
  std::uint64_t state = 0;       // changes with what the rank has registered; never 0
  std::uint64_t removals = 0;    // changes if something is not registered any more
  std::string description = {};  // for NIXL, of all that is registered; empty: the reader has it

  friend bool operator==(const Place&, const Place&) = default;
};
inline constexpr std::uint64_t kMaxDescriptionBytes = std::uint64_t{64} << 20;

[[nodiscard]] std::string to_bytes(const Request& message);
[[nodiscard]] std::string to_bytes(const Reply& message);
[[nodiscard]] std::string to_bytes(const Want& message);
[[nodiscard]] std::string to_bytes(const Answer& message);
[[nodiscard]] std::string to_bytes(const Place& message);
// kCorrupt if anything is not as to_bytes() writes it.
[[nodiscard]] Result<Request> parse_request(std::string_view bytes);
[[nodiscard]] Result<Reply> parse_reply(std::string_view bytes);
[[nodiscard]] Result<Want> parse_want(std::string_view bytes);
[[nodiscard]] Result<Answer> parse_answer(std::string_view bytes);
[[nodiscard]] Result<Place> parse_place(std::string_view bytes);

// Names this host as far as shared memory and abstract sockets go: its boot and network namespace.
[[nodiscard]] std::string host_identity();

}  // namespace driftless::peer
