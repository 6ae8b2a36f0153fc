// SPDX-License-Identifier: Apache-2.0
// Checks whether the ranks of an engine together hold a version. For each tensor, every rank sums
// the elements that it has. The sum over all ranks, with each element counted once, must equal the
// tensor's digest in the version's manifest.
//
// The reply of each rank has these keys:
//
//   "shares": [[name, its elements, the tensor's elements, region, digest, manifest's digest], ...]
//   "unproven": [[name, why], ...]
//   "absent": [name, ...]
//
// `region` identifies the set of elements. Ranks with the same region are replicas: they count once
// and must have the same digest. The manifest's digest is empty if the rank does not know it.
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
  std::string error;  // why the rank reports no shares
  std::vector<RankShare> shares;
  std::vector<std::pair<std::string, std::string>> unproven;  // tensor, reason
  std::vector<std::string> absent;  // tensors of which the rank holds nothing
};
// kCorrupt if the reply has another form.
[[nodiscard]] Result<RankShares> parse_rank_shares(const RankReply& reply, std::string_view what);

enum class ShareVerdict : unsigned char { kProven, kDiffers, kUnknown };
[[nodiscard]] std::string_view to_string(ShareVerdict verdict);

struct TensorVerdict {
  std::string tensor;
  ShareVerdict verdict = ShareVerdict::kProven;
  Digest sum;                      // over the ranks
  std::optional<Digest> manifest;  // the expected sum
  std::string why;                 // reason, unless kProven
};

struct EngineProof {
  ShareVerdict verdict = ShareVerdict::kUnknown;
  EngineIdentity holds;                // reported by all ranks, if they agree
  std::vector<TensorVerdict> tensors;  // by name
  std::uint64_t proven = 0, differing = 0, unknown = 0;
  Digest sum;       // over all ranks and tensors; must equal the digest in `holds`
  std::string why;  // one line, with the first tensors' names; empty if proven
};
// A pure function of the ranks' replies.
[[nodiscard]] EngineProof add_up(const std::vector<RankShares>& ranks);

// With `all` every tensor, otherwise those that are not proven.
[[nodiscard]] nlohmann::ordered_json proof_to_json(const EngineProof& proof,
                                                   const std::vector<RankShares>& ranks, bool all);

// Asks all ranks. With `sweep` they read their weights now; otherwise they report the sums that
// they update with every commit. kUnsupported if the engine's workers do not have this
// call.
[[nodiscard]] Result<std::vector<RankShares>> ask_shares(EngineTransport& transport, bool sweep,
                                                         PauseState pause);

// Checks that the weights of an engine's ranks add up to the version that they report. It checks
// each server process once, before updates build on it. From then on each rank proves its own share
// (receiver.prove).
class FirstProof {
 public:
  [[nodiscard]] bool asked() const { return !processes_.empty(); }
  // `opened`: the result of a request to open. kMismatch, naming the tensors, if the weights do not
  // add up. Ok if the ranks could not be asked: the next call asks again.
  [[nodiscard]] Status ask(const DriverResult& opened, EngineTransport& transport,
                           PauseState pause);
  // Takes the replies to every later request: if another server process answers, it is checked,
  // too.
  void add(const std::vector<RankReply>& replies);

 private:
  std::vector<std::string> processes_;  // already checked
};

}  // namespace driftless
