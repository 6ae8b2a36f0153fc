// What the ranks of an engine answer to our worker extension, and how they are asked.
//
//   {"nonce","rank","ok","error","state","version","staged_version","digest",...}     of each rank
//
// An engine's reply queue that has slipped answers each call with the answer to the one before: an
// answer counts only if it carries a nonce of this question, or of its repetition.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "plugin/engines/engine_link.h"

namespace driftless {

struct RankReply {
  std::int64_t rank = 0;
  bool ok = false;
  std::string error;  // empty: none
  std::string state;  // "closed", "idle", "staging", "staged", "committed", "failed"
  std::uint64_t version = 0;
  std::optional<std::uint64_t> staged_version;
};

// The nonce is the caller's to compare. kCorrupt where it is no such reply.
[[nodiscard]] Result<RankReply> parse_rank_reply(const Json& reply, std::string_view what);

// Asks every rank; one reply of each, in their order. kMismatch where the queue has slipped and
// does not come back.
[[nodiscard]] Result<std::vector<RankReply>> ask_ranks(const EngineLink& link,
                                                       std::string_view method, Json arguments,
                                                       bool must = false);

// Ok where every rank said so; else what they said.
[[nodiscard]] Status check_ranks(const std::vector<RankReply>& replies, std::string_view what);
[[nodiscard]] std::string words_of_ranks(const std::vector<RankReply>& replies);
// The version that all hold. kMismatch where they differ.
[[nodiscard]] Result<std::uint64_t> one_version(const std::vector<RankReply>& replies);

}  // namespace driftless
