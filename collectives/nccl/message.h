// SPDX-License-Identifier: Apache-2.0
// The small messages of the nccl road, between the leading publisher rank and everybody else.
//
// One form for all of them: a few kinds, and fields of which each kind uses some. What comes from
// outside is checked whole before it is used.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road.h"

namespace driftless::nccl {

enum class MessageKind : std::uint8_t {
  // To the leader.
  kHello,      // count: 0 for a receiver, else ranks of the publisher; rank; session: of a rank,
               // NcclOptions::start
  kPing,       // a sign of life
  kReport,     // request, name, version, text: proof
  kLeave,      // request
  kAck,        // attempt, rank, code, text, parts: as they were received
  kCommitted,  // attempt
  kBegin,      // request, id                                     of a publisher rank, like the rest
  kOffer,      // request, attempt, rank, generation, meeting, wait_ms, parts
  kFailed,     // attempt, rank, code, text
  kPublished,  // request, id
  // From the leader.
  kWelcome,   // session, text: the announcement, count: 1 if there is one
  kAnnounce,  // text
  kPong,
  kProbe,    // to be answered by a kPing at once
  kReply,    // request, code, text, attempt, generation, count, name: a manifest's hash
  kReceive,  // attempt, rank, generation, meeting, index, count, wait_ms, parts
  kDrop,     // attempt
  kCommit,   // attempt, id, text: the manifest, ids: what is there from now on
  kGoodbye,  // its last word: the leader closes, and answers nobody any more
  kLast = kGoodbye,
};

struct Message {
  MessageKind kind = MessageKind::kPing;
  StatusCode code = StatusCode::kOk;
  std::uint32_t rank = 0;   // of a publisher
  std::uint32_t index = 0;  // of a receiver in a communicator
  std::uint32_t count = 0;  // of ranks in a communicator, receivers, ...
  std::uint64_t request = 0;
  std::uint64_t session = 0;
  std::uint64_t attempt = 0;     // at a publication; ascends within a session
  std::uint64_t generation = 0;  // of the group
  std::uint64_t wait_ms = 0;     // what is left of the sender's deadline
  PublicationId id = {};
  std::string name = {}, meeting = {}, text = {}, needs = {};
  std::vector<PartReceipt> parts = {};
  std::vector<PublicationId> ids = {};

  friend bool operator==(const Message&, const Message&) = default;
};

[[nodiscard]] std::string to_bytes(const Message& message);
// kCorrupt if anything is not as to_bytes() writes it.
[[nodiscard]] Result<Message> parse_message(std::string_view bytes);

// The status in a message, and a message with it.
[[nodiscard]] Status status_of(const Message& message);
[[nodiscard]] Message with_status(Message message, const Status& status);

// What a publisher rank tells its receivers so that they connect: NCCL's unique id, and the version
// of the NCCL that made it. Different versions do not talk to each other; they wait for each other
// until the deadline, without a word. Two come together more easily than it seems: an engine brings
// the NCCL of its torch, a command the system's.
[[nodiscard]] std::string make_meeting(std::string_view unique_id, int version);
// The unique id. kUnsupported where `version`, this process' own, is not the maker's.
[[nodiscard]] Result<std::string_view> read_meeting(std::string_view meeting, int version);

[[nodiscard]] std::string nccl_version_text(int version);  // 22809: "2.28.9"

}  // namespace driftless::nccl
