// SPDX-License-Identifier: Apache-2.0
// Computes WeightSums: the digest of each map, read from the weights, taken from a full version or
// updated with each change; and from these each tensor's share.
#pragma once

#include "plugin/targets/mapped_weights.h"

namespace driftless {

// For messages: names rank, parameter and tensor.
[[nodiscard]] std::string name_of(const MappedWeights& weights, const WeightMap& map);

// Decides which maps make up each tensor's share, and which tensors cannot be read back. Called
// once, when the maps are known.
[[nodiscard]] Status plan_shares(MappedWeights& weights);
// Computes the shares from these digests, one for each map, and returns both.
[[nodiscard]] std::shared_ptr<const WeightSums> make_sums(const MappedWeights& weights,
                                                          std::vector<Digest> maps);

// Reads the weights. Returns a digest for each map; zero if it cannot be read back. kMismatch,
// naming the parameter, if a map holds bits that its conversion cannot produce.
[[nodiscard]] Result<std::vector<Digest>> read_sums(const MappedWeights& weights);
// Reads the weights and compares. kMismatch, naming the first map that differs.
[[nodiscard]] Status check_sums(const MappedWeights& weights, const WeightSums& expected);

// Reads the weights: their present shares, and the tensors that differ from the expected digests.
[[nodiscard]] Result<LookedShares> look_at(const MappedWeights& weights);

// For a full version, computed where its bytes lie: the digest of each tensor, and of what each map
// will hold.
struct VersionSums {
  std::vector<Digest> tensors, maps;
};
[[nodiscard]] Result<VersionSums> sums_of_version(const MappedWeights& weights,
                                                  const VersionSource& version);

// The digest of each map after these changes. `changes`: what each part adds, if the memory
// measured it; if empty, it is computed from the parts, which then have their old values.
[[nodiscard]] Result<std::vector<Digest>> sums_after(const MappedWeights& weights,
                                                     std::vector<Digest> before,
                                                     std::span<const ChangePart> parts,
                                                     std::span<const Digest> changes);

// A tensor on the host, and one place that should hold it.
struct SourcedMap {
  WeightMap map;
  std::span<const std::byte> tensor;
};
// Whether each place holds the tensor's values, converted, bit for bit. Reads both completely.
// Compares digests in the place's own type, so that lossy conversions can be compared, too.
[[nodiscard]] Result<std::vector<bool>> hold_sources(std::span<const SourcedMap> maps,
                                                     WeightMemory& memory, unsigned threads);

}  // namespace driftless
