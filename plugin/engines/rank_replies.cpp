#include "plugin/engines/rank_replies.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/hash128.h"

namespace driftless {
namespace {

constexpr int kAskAttempts = 4;
constexpr std::size_t kMaxRanks = 4096;

std::string new_nonce() { return to_hex(random_hash128()).substr(0, 16); }

std::string nonce_of(const Json& reply) {
  if (!reply.is_object()) return {};
  const auto found = reply.find("nonce");
  return found != reply.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

Result<RankReply> parse_rank_reply(const Json& reply, std::string_view what) {
  const auto wrong = [&](std::string_view key) {
    return error(StatusCode::kCorrupt, what, ": a rank's reply without a proper '", key,
                 "': ", shown(reply.dump(-1, ' ', true, Json::error_handler_t::replace), 300));
  };
  if (!reply.is_object()) return wrong("nonce");
  const auto at = [&](const char* key) -> const Json* {
    const auto found = reply.find(key);
    return found == reply.end() ? nullptr : &*found;
  };
  RankReply parsed;
  const Json* rank = at("rank");
  const Json* ok = at("ok");
  const Json* state = at("state");
  const Json* version = at("version");
  if (rank == nullptr || !rank->is_number_integer()) return wrong("rank");
  if (ok == nullptr || !ok->is_boolean()) return wrong("ok");
  if (state == nullptr || !state->is_string()) return wrong("state");
  if (version == nullptr || !version->is_number_unsigned()) return wrong("version");
  parsed.rank = rank->get<std::int64_t>();
  parsed.ok = ok->get<bool>();
  parsed.state = state->get<std::string>();
  parsed.version = version->get<std::uint64_t>();
  if (const Json* said = at("error"); said != nullptr && said->is_string()) {
    parsed.error = shown(said->get_ref<const std::string&>(), 300);
  }
  if (const Json* staged = at("staged_version"); staged != nullptr && !staged->is_null()) {
    if (!staged->is_number_unsigned()) return wrong("staged_version");
    parsed.staged_version = staged->get<std::uint64_t>();
  }
  return parsed;
}

Result<std::vector<RankReply>> ask_ranks(const EngineLink& link, std::string_view method,
                                         Json arguments, bool must) {
  std::set<std::string> nonces;
  std::map<std::size_t, RankReply> got;
  const std::string what = concat(link.url(), "/collective_rpc ", method);
  std::size_t ranks = 0;
  std::string asked(method);
  for (int i = 0; i < kAskAttempts; ++i) {
    const std::string nonce = new_nonce();
    nonces.insert(nonce);
    arguments["nonce"] = nonce;
    const Json body = {{"method", asked}, {"kwargs", arguments}};
    DRIFTLESS_ASSIGN_OR_RETURN(const Json answer, must ? link.must_post("/collective_rpc", body)
                                                       : link.post("/collective_rpc", body));
    const auto results = answer.find("results");
    if (results == answer.end() || !results->is_array() || results->size() > kMaxRanks) {
      return error(StatusCode::kCorrupt, what, ": expected {\"results\":[one for each rank]}");
    }
    ranks = results->size();
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (!nonces.contains(nonce_of((*results)[rank]))) continue;
      DRIFTLESS_ASSIGN_OR_RETURN(got[rank], parse_rank_reply((*results)[rank], what));
    }
    if (ranks > 0 && got.size() == ranks) break;
    // The question was heard; the next answers tell what came of it.
    asked = "driftless_status";
    arguments = Json::object();
  }
  if (ranks == 0 || got.size() != ranks) {
    return error(StatusCode::kMismatch, what, ": ", got.size(), " of ", ranks,
                 " ranks answered this call, the others with answers to other calls: the engine's "
                 "reply queue has slipped; restart the engine");
  }
  std::vector<RankReply> replies;
  for (auto& [rank, reply] : got) replies.push_back(std::move(reply));
  return replies;
}

std::string words_of_ranks(const std::vector<RankReply>& replies) {
  std::string words;
  for (const RankReply& reply : replies) {
    if (reply.error.empty()) continue;
    words += concat(words.empty() ? "" : "; ", "rank ", reply.rank, ": ", reply.error);
  }
  return words.empty() ? "no rank said why" : words;
}

Status check_ranks(const std::vector<RankReply>& replies, std::string_view what) {
  if (std::ranges::all_of(replies, &RankReply::ok)) return {};
  return error(StatusCode::kIncomplete, what, ": ", words_of_ranks(replies));
}

Result<std::uint64_t> one_version(const std::vector<RankReply>& replies) {
  std::string where;
  bool same = true;
  for (const RankReply& reply : replies) {
    same = same && reply.version == replies.front().version;
    where += concat(where.empty() ? "" : ", ", "rank ", reply.rank, " at ", reply.version);
  }
  if (same && !replies.empty()) return replies.front().version;
  return error(StatusCode::kMismatch, "the ranks hold different versions (", where,
               "): ", words_of_ranks(replies));
}

}  // namespace driftless
