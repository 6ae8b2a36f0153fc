// SPDX-License-Identifier: Apache-2.0
// What publisher ranks tell each other through their Group: JSON, small but for the tensor lists.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "collectives/road.h"
#include "core/digest.h"
#include "core/layout.h"
#include "core/status.h"
#include "plugin/publish/rank_payload.h"

namespace driftless {

// From every rank to the leader. Which fields are used depends on the moment.
struct RankMessage {
  Status status;                    // of this rank
  std::vector<TensorSpec> tensors;  // that it offers
  std::uint64_t version = 0;        // that it has committed
  std::uint64_t doubtful = 0;       // sealed or not, it does not know; 0: none
  bool needs_full = false;          // its snapshot is not what the receivers have
  Digest digest;                    // of its weights
  // Of each tensor that it owns, by the number in the layout.
  std::vector<std::pair<std::uint32_t, Digest>> tensor_digests;
  PayloadFindings findings;
  std::vector<PartReceipt> parts;
};

enum class Verdict : unsigned char { kNone, kCommit, kAbort, kRedoFull, kDoubt };

// From the leader to all.
struct LeaderMessage {
  Status status;  // not ok: the operation ends here, on all ranks
  Verdict verdict = Verdict::kNone;
  Hash128 run;
  std::uint64_t version = 0, base_version = 0;
  bool full = false;
  bool anchor = false;  // an anchor of the version follows
  bool resume = false;
  Digest digest;                      // of all ranks' weights
  std::vector<TensorSpec> tensors;    // of all ranks, ordered as the layout
  std::vector<std::uint32_t> owners;  // of each, a rank
  std::vector<std::string> notes;
  std::uint64_t changed_units = 0, delta_bytes = 0, wire_bytes = 0;
};

[[nodiscard]] std::string to_message(const RankMessage& message);
[[nodiscard]] std::string to_message(const LeaderMessage& message);
[[nodiscard]] Result<RankMessage> parse_rank_message(std::string_view text);
[[nodiscard]] Result<LeaderMessage> parse_leader_message(std::string_view text);

}  // namespace driftless
