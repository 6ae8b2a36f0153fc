// SPDX-License-Identifier: Apache-2.0
// What the ranks of an engine hold of each tensor, and whether it adds up to the version: each rank
// sums the elements that it has, and the sum over all of them, each element once, must be the
// digest that the version's manifest has for the tensor.
//
//   {..., "shares": [[name, elements, of elements, region, digest, manifest's digest], ...],
//         "unproven": [[name, why], ...], "absent": [name, ...]}               of each rank
//
// `region` stands for which elements: ranks that name the same one are replicas, which count once
// and must have the same digest. A manifest's digest may be empty: the rank does not know it.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "plugin/engines/engine_transport.h"

namespace driftless {

struct RankShare {
  std::string tensor;
  std::uint64_t units = 0, of_units = 0;
  std::string region;
  Digest digest;
  std::optional<Digest> manifest;
};

struct RankShares {
  std::int64_t rank = 0;
  EngineIdentity holds;
  std::string error;  // if it tells no shares: why
  std::vector<RankShare> shares;
  std::vector<std::pair<std::string, std::string>> unproven;  // tensor, why
  std::vector<std::string> absent;                            // tensors of which it has nothing
};
// kCorrupt if it is no such reply.
[[nodiscard]] Result<RankShares> parse_rank_shares(const RankReply& reply, std::string_view what);

enum class ShareVerdict : unsigned char { kProven, kDiffers, kCannotTell };
[[nodiscard]] std::string_view to_string(ShareVerdict verdict);

struct TensorVerdict {
  std::string tensor;
  ShareVerdict verdict = ShareVerdict::kProven;
  Digest sum;                      // over the ranks
  std::optional<Digest> manifest;  // what it must be
  std::string why;                 // of all but kProven
};

struct EngineProof {
  ShareVerdict verdict = ShareVerdict::kCannotTell;
  EngineIdentity holds;                // of all ranks, if they agree
  std::vector<TensorVerdict> tensors;  // by name
  std::uint64_t proven = 0, differing = 0, untold = 0;
  Digest sum;       // over all ranks and tensors: what `holds` must name
  std::string why;  // in one line, with the first tensors' names; empty if proven
};
// A pure function of what the ranks said.
[[nodiscard]] EngineProof add_up(const std::vector<RankShares>& ranks);

// With `all` every tensor, else those that are not proven.
[[nodiscard]] nlohmann::ordered_json proof_to_json(const EngineProof& proof,
                                                   const std::vector<RankShares>& ranks, bool all);

// Asks all ranks. With `sweep` they read their weights now; else they tell what they tracked since
// they last did. kUnsupported if the engine's workers have no such call.
[[nodiscard]] Result<std::vector<RankShares>> ask_shares(EngineTransport& transport, bool sweep,
                                                         PauseState pause);

// Whether what the ranks of an engine hold adds up to the version that they name: asked once of
// each server process, before anything is built on it. Each rank proves its own share from then on
// (receiver.prove).
class FirstProof {
 public:
  [[nodiscard]] bool asked() const { return !processes_.empty(); }
  // `opened`: what a request to open came to. kMismatch, naming the tensors, if it does not add up.
  // Ok if it could not be asked: the next call asks again.
  [[nodiscard]] Status ask(const DriverResult& opened, EngineTransport& transport,
                           PauseState pause);
  // Of every later request: if another server answers, it is asked, too.
  void heard(const std::vector<RankReply>& replies);

 private:
  std::vector<std::string> processes_;  // that were asked
};

}  // namespace driftless
