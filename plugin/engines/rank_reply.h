// SPDX-License-Identifier: Apache-2.0
// What the ranks of an engine answer to our workers' calls (plugin/receive/worker_reply.h).
//
//   {"nonce","rank","process","ok","error","state","version","staged_version","run","follows",
//    "digest","session","updating",...}                                           of each rank
//
// An engine's reply queue that has slipped answers each call with the answer to the one before: an
// answer counts only if it carries a nonce of this question, or of its repetition.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/version.h"
#include "formats/strict_json.h"

namespace driftless {

// Which weights a rank holds. Two are the same only if all three are.
struct EngineIdentity {
  std::string run;           // hex; empty: a base, of no run yet
  std::int64_t version = 0;  // kTornVersion
  std::string digest;        // the manifest's, hex; empty: the rank cannot tell

  friend bool operator==(const EngineIdentity&, const EngineIdentity&) = default;
};
[[nodiscard]] std::string to_string(const EngineIdentity& identity);

struct RankReply {
  std::int64_t rank = 0;
  std::string process;  // random, of the process that answered
  bool ok = false;
  std::string error;  // empty: none
  // "closed", "unknown" (nobody can tell what it holds), "idle", "staging", "staged", "committed",
  // "failed"
  std::string state;
  EngineIdentity holds;
  std::optional<std::string> follows;  // the run that its receiver follows; none: it has none
  std::optional<std::uint64_t> staged_version;
  std::string waits;             // for what its last staging waited in vain; empty: for nothing
  std::optional<bool> session;   // whether commits go through the engine's own session
  std::optional<bool> updating;  // whether an update of that session is active
  std::string text;              // the whole reply, JSON
};

// The nonce is the caller's to compare. kCorrupt if it is no such reply.
[[nodiscard]] Result<RankReply> parse_rank_reply(const Json& reply, std::string_view what);

// Calls a method with arguments on every rank; an array with one reply of each.
using CallRanks = std::function<Result<Json>(const std::string& method, const Json& arguments)>;
// One reply of every rank, in their order. kMismatch if the queue has slipped and does not come
// back.
[[nodiscard]] Result<std::vector<RankReply>> ask_ranks(const CallRanks& call,
                                                       std::string_view method, Json arguments,
                                                       std::string_view what);
[[nodiscard]] std::string new_nonce();

[[nodiscard]] bool all_ok(const std::vector<RankReply>& replies);
[[nodiscard]] bool any_in_state(const std::vector<RankReply>& replies, std::string_view state);
// "rank 1: why; rank 2: why"
[[nodiscard]] std::string words_of_ranks(const std::vector<RankReply>& replies);
// "rank 0 holds version 7 of run ab.., rank 1 ..."
[[nodiscard]] std::string holdings_of_ranks(const std::vector<RankReply>& replies);

}  // namespace driftless
