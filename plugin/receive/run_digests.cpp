// SPDX-License-Identifier: Apache-2.0
#include "plugin/receive/run_digests.h"

namespace driftless {

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
                   "', which the run has not");
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

Status RunDigests::stage(std::span<const FetchedVersion> chain) {
  staged_ = committed_;
  for (const FetchedVersion& version : chain) {
    staged_.version = version.manifest.id.version;
    DRIFTLESS_RETURN_IF_ERROR(
        follow_digests(layout_, version.manifest, version.source, staged_.tensors));
  }
  return {};
}

void RunDigests::commit() {
  before_ = std::move(committed_);
  committed_ = std::move(staged_);
}

}  // namespace driftless
