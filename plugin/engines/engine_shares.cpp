// SPDX-License-Identifier: Apache-2.0
#include "plugin/engines/engine_shares.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

namespace driftless {
namespace {

// The number of names shown in an error.
constexpr std::size_t kNamesShown = 3;

Status malformed_share(std::string_view what, std::string_view how) {
  return error(StatusCode::kCorrupt, what, ": ", how, "; is the same release on both sides?");
}

Result<std::string> text_at(const Json& row, std::size_t at, std::string_view what) {
  if (row.is_array() && row.size() > at && row[at].is_string()) return row[at].get<std::string>();
  return malformed_share(what, concat("a rank's share has no text in column ", at));
}
Result<std::uint64_t> count_at(const Json& row, std::size_t at, std::string_view what) {
  if (row.is_array() && row.size() > at && row[at].is_number_unsigned()) {
    return row[at].get<std::uint64_t>();
  }
  return malformed_share(what, concat("a rank's share has no count in column ", at));
}

Result<RankShare> parse_share(const Json& row, std::string_view what) {
  RankShare share;
  DRIFTLESS_ASSIGN_OR_RETURN(share.tensor, text_at(row, 0, what));
  DRIFTLESS_ASSIGN_OR_RETURN(share.units, count_at(row, 1, what));
  DRIFTLESS_ASSIGN_OR_RETURN(share.of_units, count_at(row, 2, what));
  DRIFTLESS_ASSIGN_OR_RETURN(share.region, text_at(row, 3, what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string digest, text_at(row, 4, what));
  DRIFTLESS_ASSIGN_OR_RETURN(share.digest, digest_from_hex(digest).with_context(what));
  DRIFTLESS_ASSIGN_OR_RETURN(const std::string manifest, text_at(row, 5, what));
  if (!manifest.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(share.manifest, digest_from_hex(manifest).with_context(what));
  }
  if (share.units > share.of_units)
    return malformed_share(what, "a share is larger than its tensor");
  return share;
}

std::vector<std::string> processes_of(const std::vector<RankReply>& replies) {
  std::vector<std::string> processes;
  for (const RankReply& reply : replies) processes.push_back(reply.process);
  return processes;
}

// The shares of all ranks in one tensor.
struct TensorShares {
  std::vector<std::pair<std::int64_t, const RankShare*>> held;  // by rank
  std::string unproven;                                         // reason and rank
};

TensorVerdict judge(const std::string& name, const TensorShares& shares) {
  TensorVerdict result;
  result.tensor = name;
  const auto verdict = [&](ShareVerdict found, std::string why) {
    result.verdict = found;
    result.why = std::move(why);
    return result;
  };
  std::map<std::string_view, std::pair<std::int64_t, const RankShare*>> regions;
  std::uint64_t units = 0, of_units = 0;
  for (const auto& [rank, share] : shares.held) {
    if (share->manifest && result.manifest && *share->manifest != *result.manifest) {
      return verdict(ShareVerdict::kDiffers, "the ranks report different digests of it");
    }
    if (share->manifest) result.manifest = share->manifest;
    if (of_units != 0 && of_units != share->of_units) {
      return verdict(ShareVerdict::kDiffers, "the ranks report different sizes of it");
    }
    of_units = share->of_units;
    const auto [known, added] = regions.try_emplace(share->region, rank, share);
    if (added) {
      units += share->units;
      result.sum += share->digest;
    } else if (known->second.second->digest != share->digest) {
      return verdict(ShareVerdict::kDiffers, concat("ranks ", known->second.first, " and ", rank,
                                                    " hold the same elements with different bits"));
    }
  }
  if (!shares.unproven.empty()) return verdict(ShareVerdict::kUnknown, shares.unproven);
  if (shares.held.empty()) return verdict(ShareVerdict::kUnknown, "no rank holds any of it");
  if (units != of_units) {
    return verdict(ShareVerdict::kUnknown,
                   concat("the ranks' shares have ", units, " of its ", of_units, " elements"));
  }
  if (!result.manifest) {
    return verdict(ShareVerdict::kUnknown, "the run does not list its digest");
  }
  if (result.sum == *result.manifest) return result;
  std::string holders;
  for (const auto& [rank, share] : shares.held) {
    holders += concat(holders.empty() ? "" : ", ", rank);
  }
  return verdict(ShareVerdict::kDiffers,
                 concat("the shares of ranks ", holders, " add up to ", to_hex(result.sum),
                        ", the manifest says ", to_hex(*result.manifest)));
}

std::map<std::string, TensorShares> by_tensor(const std::vector<RankShares>& ranks) {
  std::map<std::string, TensorShares> tensors;
  for (const RankShares& rank : ranks) {
    for (const RankShare& share : rank.shares) {
      tensors[share.tensor].held.emplace_back(rank.rank, &share);
    }
    for (const auto& [name, why] : rank.unproven) {
      tensors[name].unproven = concat("rank ", rank.rank, " cannot read it back: ", why);
    }
    for (const std::string& name : rank.absent) static_cast<void>(tensors[name]);
  }
  return tensors;
}

// Why the ranks do not all hold one version that each can prove; empty if they do.
std::string disagreement(const std::vector<RankShares>& ranks, EngineProof& proof) {
  if (ranks.empty()) return "no rank answered";
  proof.holds = ranks.front().holds;
  for (const RankShares& rank : ranks) {
    if (rank.holds.version == kTornVersion) {
      proof.verdict = ShareVerdict::kDiffers;
      return concat("rank ", rank.rank, ": ",
                    rank.error.empty() ? "holds parts of two versions" : rank.error);
    }
    if (!rank.error.empty()) return concat("rank ", rank.rank, ": ", rank.error);
    if (rank.holds != proof.holds) {
      proof.verdict = ShareVerdict::kDiffers;
      return concat("rank ", ranks.front().rank, " holds ", to_string(proof.holds), ", rank ",
                    rank.rank, " ", to_string(rank.holds));
    }
  }
  return {};
}

std::string summary(const EngineProof& proof) {
  std::string text;
  std::size_t shown = 0;
  for (const ShareVerdict kind : {ShareVerdict::kDiffers, ShareVerdict::kUnknown}) {
    for (const TensorVerdict& tensor : proof.tensors) {
      if (tensor.verdict != kind || shown == kNamesShown) continue;
      text += concat(shown++ == 0 ? "" : "; ", "tensor '", tensor.tensor, "': ", tensor.why);
    }
  }
  const std::uint64_t rest = proof.differing + proof.unknown - shown;
  return rest == 0 ? text : concat(text, "; and ", rest, " more");
}

}  // namespace

Result<RankShares> parse_rank_shares(const RankReply& reply, std::string_view what) {
  DRIFTLESS_ASSIGN_OR_RETURN(const Json json, parse_json(reply.text, what));
  RankShares result{reply.rank, reply.holds, {}, {}, {}, {}};
  if (!json.contains("shares")) {
    result.error = reply.error;
    if (!reply.error.empty()) return result;
    return error(StatusCode::kUnsupported, what, ": rank ", reply.rank, " reports no shares");
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* shares, json_array(json, "shares", what));
  for (const Json& row : *shares) {
    DRIFTLESS_ASSIGN_OR_RETURN(RankShare share, parse_share(row, what));
    result.shares.push_back(std::move(share));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* unproven, json_array(json, "unproven", what));
  for (const Json& row : *unproven) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::string name, text_at(row, 0, what));
    DRIFTLESS_ASSIGN_OR_RETURN(std::string why, text_at(row, 1, what));
    result.unproven.emplace_back(std::move(name), std::move(why));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(const Json* absent, json_array(json, "absent", what));
  for (const Json& name : *absent) {
    if (!name.is_string()) return malformed_share(what, "an absent tensor has no name");
    result.absent.push_back(name.get<std::string>());
  }
  return result;
}

std::string_view to_string(ShareVerdict verdict) {
  static constexpr std::array<std::string_view, 3> kNames{"proven", "differs", "cannot tell"};
  return kNames.at(static_cast<std::size_t>(verdict));
}

EngineProof add_up(const std::vector<RankShares>& ranks) {
  EngineProof proof;
  proof.why = disagreement(ranks, proof);
  if (!proof.why.empty()) return proof;
  for (const auto& [name, shares] : by_tensor(ranks)) {
    proof.tensors.push_back(judge(name, shares));
    proof.sum += proof.tensors.back().sum;
    switch (proof.tensors.back().verdict) {
      case ShareVerdict::kProven: ++proof.proven; break;
      case ShareVerdict::kDiffers: ++proof.differing; break;
      case ShareVerdict::kUnknown: ++proof.unknown; break;
    }
  }
  proof.verdict = proof.differing > 0                      ? ShareVerdict::kDiffers
                  : proof.unknown > 0 || proof.proven == 0 ? ShareVerdict::kUnknown
                                                           : ShareVerdict::kProven;
  proof.why = proof.tensors.empty() ? "the ranks hold no tensor" : summary(proof);
  // The tensors' digests belong to the version that the ranks report.
  if (proof.verdict == ShareVerdict::kProven && to_hex(proof.sum) != proof.holds.digest) {
    proof.verdict = ShareVerdict::kDiffers;
    proof.why = concat("all tensors add up to ", to_hex(proof.sum), ", and the ranks hold ",
                       to_string(proof.holds));
  }
  return proof;
}

nlohmann::ordered_json proof_to_json(const EngineProof& proof, const std::vector<RankShares>& ranks,
                                     bool all) {
  nlohmann::ordered_json json;
  json["verdict"] = to_string(proof.verdict);
  json["run"] = proof.holds.run;
  json["version"] = proof.holds.version;
  json["digest"] = proof.holds.digest;
  json["sum"] = to_hex(proof.sum);
  json["proven"] = proof.proven;
  json["differing"] = proof.differing;
  json["cannot_tell"] = proof.unknown;
  if (!proof.why.empty()) json["why"] = proof.why;
  json["ranks"] = nlohmann::ordered_json::array();
  for (const RankShares& rank : ranks) {
    Digest sum;
    for (const RankShare& share : rank.shares) sum += share.digest;
    json["ranks"].push_back({{"rank", rank.rank},
                             {"version", rank.holds.version},
                             {"tensors", rank.shares.size()},
                             {"share", to_hex(sum)},
                             {"unproven", rank.unproven.size()},
                             {"error", rank.error}});
  }
  json["tensors"] = nlohmann::ordered_json::array();
  for (const TensorVerdict& tensor : proof.tensors) {
    if (!all && tensor.verdict == ShareVerdict::kProven) continue;
    json["tensors"].push_back({{"tensor", tensor.tensor},
                               {"verdict", to_string(tensor.verdict)},
                               {"sum", to_hex(tensor.sum)},
                               {"manifest", tensor.manifest ? to_hex(*tensor.manifest) : ""},
                               {"why", tensor.why}});
  }
  return json;
}

Result<std::vector<RankShares>> ask_shares(EngineTransport& transport, bool sweep,
                                           PauseState pause) {
  EngineCall call{.op = EngineOp::kShares};
  call.sweep = sweep;
  call.pause = pause;
  const EngineAnswer answer = transport.carry(call);
  DRIFTLESS_RETURN_IF_ERROR(answer.status.with_context(transport.name()));
  std::vector<RankShares> ranks;
  for (const RankReply& reply : answer.ranks) {
    DRIFTLESS_ASSIGN_OR_RETURN(RankShares rank, parse_rank_shares(reply, transport.name()));
    ranks.push_back(std::move(rank));
  }
  return ranks;
}

Status FirstProof::ask(const DriverResult& opened, EngineTransport& transport, PauseState pause) {
  if (asked() || !opened.status.ok() || !opened.known) return {};  // the update reports why
  const Result<std::vector<RankShares>> ranks = ask_shares(transport, false, pause);
  // Workers of a release without this call can never prove anything: do not ask again.
  if (!ranks.ok() && ranks.status().code() != StatusCode::kUnsupported) return {};
  if (ranks.ok()) {
    const EngineProof proof = add_up(*ranks);
    if (proof.verdict == ShareVerdict::kDiffers) {
      return error(
          StatusCode::kMismatch, transport.name(), ": ", proof.why,
          "; the weights are unproven, and the engine is not updated: restart it with its base");
    }
    // A rank that still stages for an earlier driver has not reported its shares: ask again later.
    const auto silent = [](const RankShares& rank) { return !rank.error.empty(); };
    if (std::ranges::any_of(*ranks, silent)) return {};
  }
  processes_ = processes_of(opened.replies);
  return {};
}

void FirstProof::add(const std::vector<RankReply>& replies) {
  if (processes_ != processes_of(replies)) processes_.clear();
}

}  // namespace driftless
