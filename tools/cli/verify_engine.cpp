// SPDX-License-Identifier: Apache-2.0
// driftless verify --engine: adds up the shares of all ranks of a running engine.
#include <iostream>
#include <nlohmann/json.hpp>

#include "plugin/engines/engine_places.h"
#include "tools/cli/commands.h"

namespace driftless::cli {
namespace {

constexpr int kExitUnknown = 2;

Result<EngineKind> kind_of(const VerifyEngineArguments& options, const EngineLink& link) {
  if (options.kind == "auto") return find_engine_kind(link);
  return options.kind == "sglang" ? EngineKind::kSglang : EngineKind::kVllm;
}

Result<std::unique_ptr<EngineTransport>> connect(const VerifyEngineArguments& options) {
  EngineEndpoint engine{.url = options.url, .token_file = options.token_file};
  DRIFTLESS_RETURN_IF_ERROR(prepare_endpoint(engine));
  const std::chrono::milliseconds timeout(static_cast<long>(options.timeout_seconds * 1000));
  EngineLink link(engine, timeout, nullptr);
  DRIFTLESS_ASSIGN_OR_RETURN(const EngineKind kind, kind_of(options, link));
  if (kind == EngineKind::kVllm) return make_vllm_transport(std::move(link));
  return make_sglang_transport(std::move(link), options.loader, timeout, options.shm_dir);
}

void print(const EngineProof& proof, const std::vector<RankShares>& ranks, bool all) {
  std::vector<std::vector<std::string>> rows;
  for (const RankShares& rank : ranks) {
    Digest sum;
    for (const RankShare& share : rank.shares) sum += share.digest;
    rows.push_back({concat(rank.rank), concat(rank.holds.version), concat(rank.shares.size()),
                    to_hex(sum), concat(rank.unproven.size())});
  }
  print_table({"rank", "version", "tensors", "share", "unproven"}, rows);
  rows.clear();
  for (const TensorVerdict& tensor : proof.tensors) {
    if (!all && tensor.verdict == ShareVerdict::kProven) continue;
    rows.push_back({tensor.tensor, std::string(to_string(tensor.verdict)), to_hex(tensor.sum),
                    tensor.manifest ? to_hex(*tensor.manifest) : "-",
                    tensor.why.empty() ? "-" : tensor.why});
  }
  std::cout << "\n";
  if (!rows.empty()) print_table({"tensor", "verdict", "sum", "manifest", "why"}, rows);
  std::cout << to_string(proof.verdict) << ": " << to_string(proof.holds) << ": "
            << counted(proof.proven, "tensor") << " proven, " << proof.differing << " differ, "
            << proof.unknown << " unknown" << (proof.why.empty() ? "" : "; ") << proof.why
            << "\n";
}

// The number of elements shown: enough to see whether a bit, a row or everything is wrong.
constexpr std::size_t kPlacesShown = 16;

void print(const DifferentPlaces& found) {
  std::vector<std::vector<std::string>> rows;
  for (const DifferentPlace& each : found.places) {
    rows.push_back({each.tensor, concat(each.position), concat(each.rank), each.parameter,
                    each.value, each.expected});
  }
  if (rows.empty()) {
    std::cout << "no element differs from the checkpoint";
  } else {
    print_table({"tensor", "element", "rank", "parameter", "holds", "checkpoint"}, rows);
    std::cout << (found.more ? "and more elements" : "no other element");
  }
  std::cout << "; " << counted(found.not_compared.size(), "tensor") << " could not be compared\n";
}

}  // namespace

Result<int> run_verify_engine(const Common& common, const VerifyEngineArguments& options) {
  DRIFTLESS_ASSIGN_OR_RETURN(const std::unique_ptr<EngineTransport> transport, connect(options));
  // Neither pauses nor resumes the engine.
  DRIFTLESS_ASSIGN_OR_RETURN(const std::vector<RankShares> ranks,
                             ask_shares(*transport, true, PauseState::kPaused));
  const EngineProof proof = add_up(ranks);
  std::optional<DifferentPlaces> places;
  if (!options.checkpoint.empty()) {
    DRIFTLESS_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                               Checkpoint::open(posix_file_system(), options.checkpoint));
    DRIFTLESS_ASSIGN_OR_RETURN(
        places, find_places(*transport, checkpoint, kPlacesShown, PauseState::kPaused));
  }
  if (common.json) {
    nlohmann::ordered_json json = proof_to_json(proof, ranks, options.all);
    if (places) json["places"] = places_to_json(*places);
    print_json(json);
  } else {
    print(proof, ranks, options.all);
    if (places) print(*places);
  }
  switch (proof.verdict) {
    case ShareVerdict::kProven: return int{kExitOk};
    case ShareVerdict::kDiffers: return int{kExitDifferent};
    case ShareVerdict::kUnknown: return kExitUnknown;
  }
  return int{kExitInternal};
}

}  // namespace driftless::cli
