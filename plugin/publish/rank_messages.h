// SPDX-License-Identifier: Apache-2.0
// Messages between publisher ranks, one type for each phase. They travel through the Group: every
// rank sends one to the leader (collect()), or the leader sends one to all ranks
// (broadcast_message()). They are JSON, and small except for the lists of tensors.
#pragma once

#include "collectives/group.h"
#include "collectives/road.h"
#include "plugin/publish/block_maxima.h"
#include "plugin/publish/rank_payload.h"
#include "plugin/publish/run_state.h"

namespace driftless {

using TensorDigests = std::vector<TensorDigest>;  // by the number in the layout, ascending

// Changed units of a tensor, by its number in the layout.
using ChangedUnits = std::pair<std::uint32_t, std::uint64_t>;
// The tensors with the most changed units, largest first, equal ones by number; at most
// kMostChangedTensors.
[[nodiscard]] std::vector<ChangedUnits> most_changed(
    const std::map<std::uint32_t, std::uint64_t>& units);

using RankOffer = std::pair<std::uint32_t, std::uint32_t>;  // a rank, and which of its offers

inline constexpr std::uint64_t kNoStep = ~std::uint64_t{0};

// From every rank to the leader. `status` is that rank's.

struct OfferMessage {  // open(): what the rank holds
  Status status;
  std::vector<TensorSpec> tensors;
  std::vector<TensorBox> boxes;   // which part of each
  std::vector<std::string> left;  // tensors that it holds and leaves to others
  std::string quantize_rule;      // the rule of its quantization; empty: it does not quantize
  bool shares_blocks = false;     // it and another rank have parts of one FP8 block
};

struct BaseMessage {  // open(): the base that it read
  Status status;
  Digest digest;                 // of its weights
  TensorDigests tensor_digests;  // of tensors that it owns
  TensorDigests copies;          // of its offers that other ranks offer, too
};

struct ReadyMessage {  // publish(): the rank's state
  Status status;
  std::uint64_t version = 0;     // the last committed one
  std::uint64_t step = kNoStep;  // that it publishes
  std::uint64_t doubtful = 0;    // a version that it may have sealed; 0: none
  bool needs_full = false;       // no delta leads from the receivers' weights to its own
};

struct PayloadMessage {  // a version or an anchor: what the rank wrote
  Status status;
  bool needs_full = false;  // the layout cannot carry what changed as a delta
  Digest digest;            // of its weights
  // Digests of its tensors: of the changed ones for a delta, else of all.
  TensorDigests tensor_digests;
  TensorDigests unchanged;  // for a delta: of its other tensors that other ranks share
  TensorDigests copies;     // of its offers that other ranks offer, too
  PayloadFindings findings;
  std::vector<ChangedUnits> most_changed;
  std::vector<PartReceipt> parts;
  std::vector<std::string> notes;  // for all ranks
};

// From the leader to all ranks. A status that is not ok ends the operation on all of them.

struct AssemblyMessage {  // open(): the layout of all ranks
  Status status;
  std::vector<TensorSpec> tensors;                 // ordered as the layout
  std::vector<std::vector<std::uint32_t>> owners;  // of each: a rank, or one for each block
  // Offers that are dropped because another rank publishes them, as runs: the rank that offers
  // them, the first offer of the run, and the number of offers.
  std::vector<std::array<std::uint32_t, 3>> dropped;
  std::vector<RankOffer> copied;  // the offers that are published instead
  std::vector<BlockCut> cuts;     // ascending by tensor
  std::string quantize_rule;      // of the ranks that quantize; empty: none does
  bool shares_blocks = false;     // ranks agree on the scales of blocks before each version
  std::vector<std::string> notes;
};

struct StartMessage {  // open(): the version that the run starts from
  Status status;
  Hash128 run;
  std::uint64_t version = 0;
  Digest digest;  // of all ranks' weights at that version
  bool resume = false;
  bool otherwise = false;  // the weights differ from that version
  bool anchor = false;     // an anchor of the version follows
};

struct PlanMessage {  // publish(): the version that all ranks make
  Status status;
  std::uint64_t version = 0, base_version = 0;
  Digest digest;  // of all ranks' weights at base_version
  bool full = false;
  VersionShape shape;
  std::vector<std::string> notes;
  std::string fallback;  // why all ranks use the fallback road; empty: they do not
};

enum class Verdict : unsigned char { kNone, kCommit, kAbort, kRedoFull, kDoubt };

struct OutcomeMessage {  // a version or an anchor: whether it is committed
  Status status;
  Verdict verdict = Verdict::kNone;
  bool anchor = false;  // an anchor of the version follows
  Digest digest;        // of all ranks' weights
  std::vector<std::string> notes;
  std::uint64_t changed_units = 0, delta_bytes = 0, wire_bytes = 0;
};

struct FallbackMessage {  // whether all ranks switch to the fallback road
  Status status;
  std::string reason;  // empty: the road failed on no rank
};

// In both directions.

struct StatusMessage {
  Status status;
};
struct DigestMessage {
  Status status;
  Digest digest;  // of the rank's weights; in the leader's answer: of all ranks' weights
};
struct CountMessage {
  Status status;
  std::uint64_t count = 0;  // of a rank's pieces; in the leader's answer: of rounds
};

// For all message types above.
template <typename Message>
[[nodiscard]] std::string to_message(const Message& message);
template <typename Message>
[[nodiscard]] Result<Message> parse_message(std::string_view text);

// Adds a rank's failure to the status that is reported. If flush() synchronizes the ranks, one
// failure makes all of them fail with kIncomplete: that status is replaced by the cause.
void add_failure(Status& failed, const Status& found, std::size_t rank);

// Collects one message from every rank. The leader gets all of them, the other ranks none. If a
// rank failed, the status names it.
template <typename Message>
[[nodiscard]] Result<std::vector<Message>> collect(Group& group, const Message& mine,
                                                   const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                             group.gather(to_message(mine), deadline));
  std::vector<Message> messages;
  Status failed;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    DRIFTLESS_ASSIGN_OR_RETURN(Message message, parse_message<Message>(texts[rank]));
    add_failure(failed, message.status, rank);
    messages.push_back(std::move(message));
  }
  if (!failed.ok()) return failed;
  return messages;
}

// Broadcasts the leader's `message`; the other ranks receive it in `message`.
template <typename Message>
[[nodiscard]] Status broadcast_message(Group& group, Message& message, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::string text,
      group.broadcast(group.leads() ? to_message(message) : std::string(), deadline));
  if (group.leads()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(message, parse_message<Message>(text));
  return {};
}

// Broadcasts the leader's message. Fails on all ranks with its status if that is not ok.
template <typename Message>
[[nodiscard]] Result<Message> broadcast_checked(Group& group, Message message,
                                                const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(broadcast_message(group, message, deadline));
  if (!message.status.ok()) return message.status;
  return message;
}

}  // namespace driftless
