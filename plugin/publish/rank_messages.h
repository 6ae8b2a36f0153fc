// SPDX-License-Identifier: Apache-2.0
// Messages between publisher ranks, one type for each phase, and how they travel through the Group:
// every rank sends one to the leader (collect), and the leader sends one to all (tell). As JSON;
// small, but for the lists of tensors.
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
// Those with the most, largest first, equal ones by number; at most kMostChangedTensors.
[[nodiscard]] std::vector<ChangedUnits> most_changed(
    const std::map<std::uint32_t, std::uint64_t>& units);

using RankOffer = std::pair<std::uint32_t, std::uint32_t>;  // a rank, and which of its offers

inline constexpr std::uint64_t kNoStep = ~std::uint64_t{0};

// From every rank to the leader. `status` is the rank's own.

struct OfferMessage {  // open(): what the rank holds
  Status status;
  std::vector<TensorSpec> tensors;
  std::vector<TensorBox> boxes;   // which part of each
  std::vector<std::string> left;  // tensors that it holds and leaves to others
  std::string quantize_rule;      // by which it quantizes; empty: it does not
  bool shares_blocks = false;     // it has a part of an FP8 block, and another rank the rest
};

struct BaseMessage {  // open(): the base that it read
  Status status;
  Digest digest;                 // of its weights
  TensorDigests tensor_digests;  // of tensors that it owns
  TensorDigests copies;          // of its offers that other ranks have, too
};

struct ReadyMessage {  // publish(): where the rank stands
  Status status;
  std::uint64_t version = 0;     // that it has committed
  std::uint64_t step = kNoStep;  // that it publishes
  std::uint64_t doubtful = 0;    // version of which it does not know whether it was sealed; 0: none
  bool needs_full = false;       // no delta leads from what the receivers have to its weights
};

struct PayloadMessage {  // a version or an anchor: what the rank wrote
  Status status;
  bool needs_full = false;  // the layout cannot carry what changed as a delta
  Digest digest;            // of its weights
  // Digests of tensors that it owns: for a delta of those that changed, else of all.
  TensorDigests tensor_digests;
  TensorDigests unchanged;  // for a delta: of the other tensors that it shares with other ranks
  TensorDigests copies;     // of its offers that other ranks have, too
  PayloadFindings findings;
  std::vector<ChangedUnits> most_changed;
  std::vector<PartReceipt> parts;
  std::vector<std::string> notes;  // for all ranks
};

// From the leader to all. A status that is not ok ends the operation on all ranks.

struct AssemblyMessage {  // open(): the layout of all ranks
  Status status;
  std::vector<TensorSpec> tensors;                 // ordered as the layout
  std::vector<std::vector<std::uint32_t>> owners;  // of each: a rank, or one for each block
  // Offers that another rank has, too: a rank, the first of them, and how many.
  std::vector<std::array<std::uint32_t, 3>> dropped;
  std::vector<RankOffer> copied;  // what stays of each
  std::vector<BlockCut> cuts;     // ascending by tensor
  std::string quantize_rule;      // of the ranks that quantize; empty: none does
  bool shares_blocks = false;     // ranks agree on the scales of blocks before each version
  std::vector<std::string> notes;
};

struct StartMessage {  // open(): where the run starts, or goes on
  Status status;
  Hash128 run;
  std::uint64_t version = 0;
  Digest digest;  // of all ranks' weights at that version
  bool resume = false;
  bool otherwise = false;  // the weights are not those of the version
  bool anchor = false;     // an anchor of the version follows
};

struct PlanMessage {  // publish(): the version that all ranks make
  Status status;
  std::uint64_t version = 0, base_version = 0;
  Digest digest;  // of all ranks' weights at base_version
  bool full = false;
  VersionShape shape;
  std::vector<std::string> notes;
  std::string fallback;  // why all ranks use the road's fallback; empty: they do not
};

enum class Verdict : unsigned char { kNone, kCommit, kAbort, kRedoFull, kDoubt };

struct OutcomeMessage {  // a version or an anchor: what becomes of it
  Status status;
  Verdict verdict = Verdict::kNone;
  bool anchor = false;  // an anchor of the version follows
  Digest digest;        // of all ranks' weights
  std::vector<std::string> notes;
  std::uint64_t changed_units = 0, delta_bytes = 0, wire_bytes = 0;
};

struct FallbackMessage {  // whether all ranks go over to the road's fallback
  Status status;
  std::string reason;  // empty: no rank's road has failed
};

// In both directions.

struct StatusMessage {
  Status status;
};
struct DigestMessage {
  Status status;
  Digest digest;  // of a rank's weights; of all ranks'
};
struct CountMessage {
  Status status;
  std::uint64_t count = 0;  // of pieces that a rank has; of rounds
};

// For the types above.
template <typename Message>
[[nodiscard]] std::string to_message(const Message& message);
template <typename Message>
[[nodiscard]] Result<Message> parse_message(std::string_view text);

// The status to report of what several ranks found. If flush() is a meeting, one failure makes all
// ranks fail with kIncomplete: that status gives way to the cause.
void add_failure(Status& failed, const Status& found, std::size_t rank);

// The messages of all ranks, on the leader; on the others none. A failure of one names it.
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

// The leader's message: into `message`, which the leader gives.
template <typename Message>
[[nodiscard]] Status hear(Group& group, Message& message, const Deadline& deadline) {
  DRIFTLESS_ASSIGN_OR_RETURN(
      const std::string text,
      group.broadcast(group.leads() ? to_message(message) : std::string(), deadline));
  if (group.leads()) return {};
  DRIFTLESS_ASSIGN_OR_RETURN(message, parse_message<Message>(text));
  return {};
}

// The same; returns the leader's status if that is not ok.
template <typename Message>
[[nodiscard]] Result<Message> tell(Group& group, Message message, const Deadline& deadline) {
  DRIFTLESS_RETURN_IF_ERROR(hear(group, message, deadline));
  if (!message.status.ok()) return message.status;
  return message;
}

}  // namespace driftless
