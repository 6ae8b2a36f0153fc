// SPDX-License-Identifier: Apache-2.0
// The small messages of the peer road. Over the hub: requests of other processes to the leading
// trainer rank, and its replies. On a connection for data: what a reader wants of a part, and the
// head of the answer. What comes from outside is checked whole before it is used.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road.h"

namespace driftless::peer {

// Where a trainer rank serves its parts.
struct Endpoint {
  std::uint32_t rank = 0;
  std::string tcp;     // "host:port"
  std::string socket;  // an abstract Unix socket's name; empty: no shared memory
  std::string host;    // host_identity() of the process

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

// Ranges of one part, which follow each other in the answer. If a reader on a Unix socket asks for
// a descriptor, the answer brings one of the whole part's memory instead of bytes.
struct Want {
  PublicationId id = {};
  std::string name = {};
  std::uint64_t size_bytes = 0;  // of the part
  std::uint8_t descriptor = 0;   // 1: by one
  std::vector<ByteRange> ranges = {};

  friend bool operator==(const Want&, const Want&) = default;
};
inline constexpr std::uint64_t kMaxRanges = std::uint64_t{1} << 20;

struct Answer {
  StatusCode code = StatusCode::kOk;
  std::string text = {};
  std::uint64_t bytes = 0;  // that follow

  friend bool operator==(const Answer&, const Answer&) = default;
};

[[nodiscard]] std::string to_bytes(const Request& message);
[[nodiscard]] std::string to_bytes(const Reply& message);
[[nodiscard]] std::string to_bytes(const Want& message);
[[nodiscard]] std::string to_bytes(const Answer& message);
// kCorrupt if anything is not as to_bytes() writes it.
[[nodiscard]] Result<Request> parse_request(std::string_view bytes);
[[nodiscard]] Result<Reply> parse_reply(std::string_view bytes);
[[nodiscard]] Result<Want> parse_want(std::string_view bytes);
[[nodiscard]] Result<Answer> parse_answer(std::string_view bytes);

// Names this host as far as shared memory and abstract sockets go: its boot and network namespace.
[[nodiscard]] std::string host_identity();

}  // namespace driftless::peer
