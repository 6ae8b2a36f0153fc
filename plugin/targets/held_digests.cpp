// SPDX-License-Identifier: Apache-2.0
#include "plugin/targets/held_digests.h"

#include <algorithm>

#include "kernels/host_kernels.h"

namespace driftless {
namespace {

TensorDigest* find_in(std::vector<TensorDigest>& digests, std::uint32_t tensor) {
  const auto at = std::ranges::lower_bound(digests, tensor, {}, &TensorDigest::tensor);
  return at != digests.end() && at->tensor == tensor ? &*at : nullptr;
}

}  // namespace

HeldDigests held_after(const MappedWeights& weights, const Manifest& manifest,
                       const HeldDigests& before) {
  const bool full = manifest.encoding == Encoding::kFull;
  if (!weights.summed || !manifest.has_tensor_digests() || (!full && !before)) return nullptr;
  auto after = std::make_shared<std::vector<TensorDigest>>();
  if (!full) *after = *before;
  for (std::uint32_t tensor = 0; full && tensor < weights.layout.size(); ++tensor) {
    if (weights.maps_any(tensor)) after->push_back({tensor, Digest()});
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    const auto index = weights.layout.find(tensor.name);
    TensorDigest* const held = index ? find_in(*after, *index) : nullptr;
    if (held != nullptr) held->digest = *tensor.digest;
  }
  return after;
}

Digest sum_of(const std::vector<TensorDigest>& digests) {
  Digest sum;
  for (const TensorDigest& each : digests) sum += each.digest;
  return sum;
}

std::string first_wrong(const WeightLayout& layout, const std::vector<TensorDigest>& found,
                        const std::vector<TensorDigest>& expected) {
  for (std::size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    if (found[i].digest == expected[i].digest) continue;
    return concat("tensor '", layout[found[i].tensor].name, "' has digest ",
                  to_hex(found[i].digest), ", expected ", to_hex(expected[i].digest));
  }
  return {};
}

std::vector<TensorDigest> digests_with(const MappedWeights& weights,
                                       std::vector<TensorDigest> digests,
                                       std::span<const DeltaPiece> pieces) {
  for (const DeltaPiece& piece : pieces) {
    TensorDigest* const held = find_in(digests, piece.tensor);
    if (held == nullptr) continue;
    held->digest += host_kernels().digest_change(
        weights.tensors[piece.tensor].key, unit_bytes(weights.layout[piece.tensor].dtype),
        piece.origin, piece.offsets, piece.count, piece.old_values, piece.values);
  }
  return digests;
}

Result<std::vector<TensorDigest>> read_digests(const MappedWeights& weights,
                                               const std::vector<TensorDigest>& tensors) {
  std::vector<TensorDigest> found = tensors;
  for (auto& [tensor, digest] : found) {
    if (!weights.tensors[tensor].contiguous) continue;
    const std::span<const std::byte> bytes(weights.map_of(tensor).at(0),
                                           weights.layout[tensor].size_bytes);
    const TensorBytes all{{0, bytes, weights.memory->kind()}, &weights.tensors[tensor].key};
    DRIFTLESS_ASSIGN_OR_RETURN(digest, weights.memory->digest(std::span(&all, 1), weights.threads));
  }
  return found;
}

Result<std::vector<TensorDigest>> digests_in(const MappedWeights& weights,
                                             const VersionSource& version,
                                             const std::vector<TensorDigest>& tensors) {
  std::vector<TensorDigest> found = tensors;
  for (auto& [tensor, digest] : found) {
    digest = Digest();
    const TensorChange* const change = version.find(tensor);
    if (change == nullptr) continue;  // it has no bytes
    std::vector<TensorBytes> bytes;
    for (const DensePiece& piece : version.dense(*change)) {
      bytes.push_back({piece, &weights.tensors[tensor].key});
    }
    DRIFTLESS_ASSIGN_OR_RETURN(digest, weights.contiguous
                                           ? weights.memory->digest(bytes, weights.threads)
                                           : digest_on_host(bytes, weights.threads));
  }
  return found;
}

}  // namespace driftless
