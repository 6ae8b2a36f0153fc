// SPDX-License-Identifier: Apache-2.0
// The replies of an engine's ranks to our workers' calls (plugin/receive/worker_reply.h).
//
// Each rank's reply is an object with the keys "nonce", "rank", "process", "ok", "error", "state",
// "version", "staged_version", "run", "follows", "digest", "session", "updating" and others.
//
// If an engine's reply queue has slipped, each call receives the answer to the call before. So an
// answer counts only if it carries the nonce of this call or of its repetition.
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

// Which weights a rank holds. Two identities are equal only if all three fields are.
struct EngineIdentity {
  std::string run;           // hex; empty: a base that belongs to no run yet
  std::int64_t version = 0;  // or kTornVersion
  std::string digest;        // the manifest's, hex; empty: the rank does not know it

  friend bool operator==(const EngineIdentity&, const EngineIdentity&) = default;
};
[[nodiscard]] std::string to_string(const EngineIdentity& identity);

struct RankReply {
  std::int64_t rank = 0;
  std::string process;  // random; identifies the process that answered
  bool ok = false;
  std::string error;  // empty: none
  // "closed", "unknown" (its weights are unknown), "idle", "staging", "staged", "committed",
  // "failed"
  std::string state;
  EngineIdentity holds;
  // The run that its receiver follows; none: it has no receiver.
  std::optional<std::string> follows;
  std::optional<std::uint64_t> staged_version;
  std::string waits;             // why its last staging found no version; else empty
  std::optional<bool> session;   // whether commits go through the engine's own session
  std::optional<bool> updating;  // whether an update in that session is active
  std::string text;              // the whole reply, JSON
};

// The caller compares the nonce. kCorrupt if the reply has another form.
[[nodiscard]] Result<RankReply> parse_rank_reply(const Json& reply, std::string_view what);

// Calls a method with arguments on every rank; returns an array with one reply per rank.
using CallRanks = std::function<Result<Json>(const std::string& method, const Json& arguments)>;
// Returns one reply per rank, in rank order. kMismatch if the queue has slipped and does not
// recover.
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
