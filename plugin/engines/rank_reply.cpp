// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/rank_reply.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/hash128.h"

namespace driftless {
namespace {

constexpr int kAskAttempts = 8;  // the queue slips by one each time a call raises
constexpr std::size_t kMaxRanks = 4096;

std::string nonce_of(const Json& reply) {
  if (!reply.is_object()) return {};
  const auto found = reply.find("nonce");
  return found != reply.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string dumped(const Json& reply) {
  return reply.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Reads the text under a key. False if the value is not text.
bool take_text(const Json& reply, const char* key, bool needed, std::string& text) {
  const auto found = reply.find(key);
  if (found == reply.end() || found->is_null()) return !needed;
  if (!found->is_string()) return false;
  text = found->get<std::string>();
  return true;
}

}  // namespace

std::string new_nonce() { return to_hex(random_hash128()).substr(0, 16); }

std::string to_string(const EngineIdentity& identity) {
  if (identity.version < 0) return "parts of two versions";
  return concat("version ", identity.version, " of ",
                identity.run.empty() ? "no run" : concat("run ", identity.run), " with digest ",
                identity.digest.empty() ? "unproven" : identity.digest);
}

Result<RankReply> parse_rank_reply(const Json& reply, std::string_view what) {
  const auto wrong = [&](std::string_view key) {
    return error(StatusCode::kCorrupt, what, ": a rank's reply without a proper '", key,
                 "' (is the engine's driftless of this release?): ", shown(dumped(reply), 300));
  };
  if (!reply.is_object()) return wrong("nonce");
  RankReply parsed;
  const auto rank = reply.find("rank");
  const auto ok = reply.find("ok");
  const auto version = reply.find("version");
  if (rank == reply.end() || !rank->is_number_integer()) return wrong("rank");
  if (ok == reply.end() || !ok->is_boolean()) return wrong("ok");
  if (version == reply.end() || !version->is_number_integer()) return wrong("version");
  parsed.rank = rank->get<std::int64_t>();
  parsed.ok = ok->get<bool>();
  parsed.holds.version = version->get<std::int64_t>();
  if (parsed.holds.version < kTornVersion) return wrong("version");
  if (!take_text(reply, "state", true, parsed.state)) return wrong("state");
  if (!take_text(reply, "process", true, parsed.process)) return wrong("process");
  if (!take_text(reply, "run", true, parsed.holds.run)) return wrong("run");
  if (!take_text(reply, "digest", true, parsed.holds.digest)) return wrong("digest");
  if (!take_text(reply, "follows", true, parsed.follows.emplace())) return wrong("follows");
  if (!take_text(reply, "error", false, parsed.error)) return wrong("error");
  if (!take_text(reply, "waits", false, parsed.waits)) return wrong("waits");
  parsed.waits = parsed.waits.empty() ? "" : shown(parsed.waits, 300);
  parsed.error = parsed.error.empty() ? "" : shown(parsed.error, 300);
  if (const auto staged = reply.find("staged_version");
      staged != reply.end() && !staged->is_null()) {
    if (!staged->is_number_unsigned()) return wrong("staged_version");
    parsed.staged_version = staged->get<std::uint64_t>();
  }
  if (const auto session = reply.find("session"); session != reply.end() && session->is_boolean()) {
    parsed.session = session->get<bool>();
  }
  if (const auto active = reply.find("updating"); active != reply.end() && active->is_boolean()) {
    parsed.updating = active->get<bool>();
  }
  parsed.text = dumped(reply);
  return parsed;
}

Result<std::vector<RankReply>> ask_ranks(const CallRanks& call, std::string_view method,
                                         Json arguments, std::string_view what) {
  std::set<std::string> nonces;
  std::map<std::size_t, RankReply> got;
  std::size_t ranks = 0;
  std::string asked(method);
  for (int i = 0; i < kAskAttempts; ++i) {
    const std::string nonce = new_nonce();
    nonces.insert(nonce);
    arguments["nonce"] = nonce;
    DRIFTLESS_ASSIGN_OR_RETURN(const Json results, call(asked, arguments));
    if (!results.is_array() || results.size() > kMaxRanks) {
      return error(StatusCode::kCorrupt, what, " ", method, ": expected one reply for each rank");
    }
    ranks = results.size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (!nonces.contains(nonce_of(results[rank]))) continue;
      DRIFTLESS_ASSIGN_OR_RETURN(got[rank], parse_rank_reply(results[rank], what));
    }
    if (ranks > 0 && got.size() == ranks) break;
    // The ranks received the question. Do not repeat it: the next status replies report its result.
    asked = "driftless_status";
    arguments = Json::object();
  }
  if (ranks == 0 || got.size() != ranks) {
    return error(StatusCode::kMismatch, what, " ", method, ": ", got.size(), " of ", ranks,
                 " ranks answered this call, the others with answers to other calls: the engine's "
                 "reply queue has slipped; restart the engine");
  }
  std::vector<RankReply> replies;
  for (auto& [rank, reply] : got) replies.push_back(std::move(reply));
  return replies;
}

bool all_ok(const std::vector<RankReply>& replies) {
  return std::ranges::all_of(replies, &RankReply::ok);
}

bool any_in_state(const std::vector<RankReply>& replies, std::string_view state) {
  return std::ranges::any_of(replies, [&](const RankReply& r) { return r.state == state; });
}

std::string words_of_ranks(const std::vector<RankReply>& replies) {
  std::string words;
  for (const RankReply& reply : replies) {
    if (reply.error.empty()) continue;
    words += concat(words.empty() ? "" : "; ", "rank ", reply.rank, ": ", reply.error);
  }
  return words.empty() ? "no rank gave a reason" : words;
}

std::string holdings_of_ranks(const std::vector<RankReply>& replies) {
  std::string words;
  for (const RankReply& reply : replies) {
    words +=
        concat(words.empty() ? "" : ", ", "rank ", reply.rank, " holds ", to_string(reply.holds));
  }
  return words.empty() ? "no rank answered" : words;
}

}  // namespace driftless
