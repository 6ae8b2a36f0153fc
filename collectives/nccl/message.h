// SPDX-License-Identifier: Apache-2.0
// The small messages of the nccl road, between the leading publisher rank and all other processes.
//
// All kinds share one struct; each kind uses some of its fields. Messages from outside are checked
// completely before they are used.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road.h"

namespace driftless::nccl {

enum class MessageKind : std::uint8_t {
  // To the leader. kHello: count (0 for a receiver, otherwise the number of publisher ranks), rank,
  // session (of a rank: NcclOptions::start).
  kHello,
  kPing,       // a sign of life
  kReport,     // request, name, id.version, text: proof, needs
  kLeave,      // request
  kAck,        // attempt, rank, code, text, parts: as received
  kCommitted,  // attempt
  // To the leader, from publisher ranks.
  kBegin,      // request, id
  kOffer,      // request, attempt, rank, generation, meeting, wait_ms, parts
  kFailed,     // attempt, rank, code, text
  kPublished,  // request, id
  // From the leader.
  kWelcome,   // session, text: the announcement, count: 1 if there is one
  kAnnounce,  // text
  kPong,
  kProbe,    // the peer must answer with a kPing at once
  kReply,    // request, code, text, attempt, generation, count, name: a manifest's hash
  kReceive,  // attempt, rank, generation, meeting, index, count, wait_ms, parts
  kDrop,     // attempt; to publisher ranks also code, text
  kCommit,   // attempt, id, text: the manifest, ids: all publications held from now on
  kGoodbye,  // its last message: the leader closes and answers no more
  kEnd,      // text: the end of the run; the receiver answers at once, with an empty one
  kLast = kEnd,
};

struct Message {
  MessageKind kind = MessageKind::kPing;
  StatusCode code = StatusCode::kOk;
  std::uint32_t rank = 0;   // the publisher's rank
  std::uint32_t index = 0;  // the receiver's rank in a communicator
  std::uint32_t count = 0;  // number of ranks in a communicator, of receivers, ...
  std::uint64_t request = 0;
  std::uint64_t session = 0;
  std::uint64_t attempt = 0;     // to publish; ascends within a session
  std::uint64_t generation = 0;  // of the group
  std::uint64_t wait_ms = 0;     // remaining time of the sender's deadline
  PublicationId id = {};
  std::string name = {}, meeting = {}, text = {}, needs = {};
  std::vector<PartReceipt> parts = {};
  std::vector<PublicationId> ids = {};

  friend bool operator==(const Message&, const Message&) = default;
};

[[nodiscard]] std::string to_bytes(const Message& message);
// kCorrupt if the bytes are not what to_bytes() writes.
[[nodiscard]] Result<Message> parse_message(std::string_view bytes);

// Reads the status from a message; and makes a message with a status.
[[nodiscard]] Status status_of(const Message& message);
[[nodiscard]] Message with_status(Message message, const Status& status);

// The bytes that a publisher rank sends to its receivers so that they connect: NCCL's unique id,
// and the version of the NCCL that made it. Different NCCL versions cannot communicate; they wait
// for each other until the deadline without an error. A mix occurs easily: an engine uses the NCCL
// of its torch, a command the system's.
[[nodiscard]] std::string make_meeting(std::string_view unique_id, int version);
// The unique id. kUnsupported if `version`, which this process uses, differs from the sender's.
[[nodiscard]] Result<std::string_view> read_meeting(std::string_view meeting, int version);

[[nodiscard]] std::string nccl_version_text(int version);  // 22809: "2.28.9"

}  // namespace driftless::nccl
