// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/run_digests.h"

#include "formats/run_info.h"
#include "plugin/receive/version_fetcher.h"

namespace driftless {
namespace {

// Ok if the tensors that a partial state holds have their version's digests, or if either is
// unknown. `digests`: of each tensor of the layout at that version.
Status check_held_tensors(const TargetState& state, const WeightLayout& layout,
                          std::span<const Digest> digests) {
  if (!state.tensors || digests.size() != layout.size()) return {};
  for (const TensorShare& held : *state.tensors) {
    if (held.digest == digests[held.tensor]) continue;
    return error(StatusCode::kWrongBase, "tensor '", layout[held.tensor].name, "' has digest ",
                 to_hex(held.digest), ", but ",
                 state.id.version == 0 ? std::string("the run started from")
                                       : concat("version ", state.id.version, " of the run has"),
                 " ", to_hex(digests[held.tensor]),
                 state.id.version == 0
                     ? ": another base; use the checkpoint that this run started from"
                     : ": it is not that version; start from the run's base, or an anchor");
  }
  return {};
}

}  // namespace

Status follow_digests(const WeightLayout& layout, const Manifest& manifest, std::string_view source,
                      std::vector<Digest>& digests) {
  const bool full = manifest.encoding == Encoding::kFull;
  if (!manifest.has_tensor_digests() || (!full && digests.empty())) {
    digests.clear();
    return {};
  }
  if (full && manifest.tensors.size() != layout.size()) {
    return error(StatusCode::kMismatch, source, ": a full version with digests of ",
                 manifest.tensors.size(), " of ", layout.size(), " tensors");
  }
  digests.resize(layout.size());
  for (const ManifestTensor& tensor : manifest.tensors) {
    const auto index = layout.find(tensor.name);
    if (!index) {
      return error(StatusCode::kMismatch, source, ": has a digest of tensor '", tensor.name,
                   "', which is not in the run");
    }
    digests[*index] = *tensor.digest;
  }
  Digest sum;
  for (const Digest& digest : digests) sum += digest;
  if (sum == manifest.digest) return {};
  return error(StatusCode::kMismatch, source, ": after it the digests of all tensors add up to ",
               to_hex(sum), ", but its digest is ", to_hex(manifest.digest),
               ". Nothing was changed; send a full version");
}

RunDigests::RunDigests(const RunInfo& run)
    : layout_(run.layout),
      run_(run.run),
      base_(run.base_digest),
      base_tensors_(run.tensor_digests) {}

const std::vector<Digest>& RunDigests::tensors(std::uint64_t version) const {
  static const std::vector<Digest> unknown;
  return committed_.version == version ? committed_.tensors : unknown;
}

void RunDigests::find(const TargetState& state, VersionFetcher& fetcher) {
  const std::uint64_t version = state.id.version;
  if (std::exchange(looked_, true) && version == committed_.version) return;
  committed_ = {version, state.valid ? fetcher.digests_at(version, layout_, base_tensors_)
                                     : std::vector<Digest>()};
}

Status RunDigests::stage(std::span<const FetchedVersion> chain) {
  staged_ = committed_;
  for (const FetchedVersion& version : chain) {
    staged_.version = version.manifest.id.version;
    DRIFTLESS_RETURN_IF_ERROR(
        follow_digests(layout_, version.manifest, version.source, staged_.tensors));
  }
  return {};
}

void RunDigests::commit(bool partial) {
  before_ = std::move(committed_);
  committed_ = std::move(staged_);
  unproven_before_ = unproven_;
  if (!partial || !committed_.tensors.empty()) unproven_.clear();
}

void RunDigests::undo() {
  committed_ = before_;
  unproven_ = unproven_before_;
}

Status RunDigests::prove(const TargetState& state, VersionFetcher& fetcher) {
  find(state, fetcher);
  if (!state.valid) return {};
  return state.partial ? prove_some(state) : prove_all(state, fetcher);
}

Status RunDigests::prove_again(const TargetState& state, VersionFetcher& fetcher) {
  if (unproven_.empty() || !state.valid || state.partial) return {};
  Status claim = prove_all(state, fetcher);
  if (!claim.ok()) unproven_ = std::string(claim.message());
  return claim;
}

// Proves each tensor that is held.
Status RunDigests::prove_some(const TargetState& state) {
  const std::vector<Digest>& known = committed_.tensors;
  const std::string claim =
      concat("the weights are claimed to be version ", state.id.version, " of run ", to_hex(run_));
  if (known.empty() && state.id.version > 0 && !state.version_digest) {
    return error(StatusCode::kWrongBase, claim, ", some tensors are not held here, and the ",
                 "manifests that led there are gone: nothing proves it; start from the run's ",
                 "base, or without a version");
  }
  if (known.empty() || !state.tensors) {
    unproven_ =
        concat(claim, ", and the run does not list the digests of the tensors that are held here");
  }
  return check_held_tensors(state, layout_, known);
}

// Version 0 was already compared with the announcement.
Status RunDigests::prove_all(const TargetState& state, VersionFetcher& fetcher) {
  const std::uint64_t version = state.id.version;
  if (version == 0) return {};
  const std::optional<Digest> expected = fetcher.digest_at(version);
  unproven_.clear();
  if (!expected) {
    unproven_ = concat("the weights are claimed to be version ", version, " of run ", to_hex(run_),
                       ", and no manifest on the road has its digest");
  }
  if (!expected || *expected == state.digest) return {};
  return error(StatusCode::kWrongBase, "the weights are claimed to be version ", version,
               ", and have digest ", to_hex(state.digest), ", but version ", version, " of run ",
               to_hex(run_), " has ", to_hex(*expected),
               ": they are not that version; start from the run's base, or without a version");
}

Status RunDigests::check_base(const TargetState& state, const FetchedVersion& first) const {
  const Manifest& manifest = first.manifest;
  const bool delta = manifest.encoding != Encoding::kFull;
  if (!state.partial || !delta || manifest.base_version != 0) return {};
  if (manifest.base_digest == base_) return {};
  return error(StatusCode::kWrongBase, first.source, ": builds on digest ",
               to_hex(manifest.base_digest), ", but run ", to_hex(run_), " started from ",
               to_hex(base_), "; send a full version");
}

}  // namespace driftless
