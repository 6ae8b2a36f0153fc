// SPDX-License-Identifier: Apache-2.0
// What weights add up to (WeightSums): read from them, taken from a full version, or carried on
// from change to change; and what follows for each tensor's share.
#pragma once

#include "plugin/targets/mapped_weights.h"

namespace driftless {

// For messages: rank, parameter and tensor.
[[nodiscard]] std::string name_of(const MappedWeights& weights, const WeightMap& map);

// Which maps make up each tensor's share, and what cannot be read back. Once, when they are known.
[[nodiscard]] Status plan_shares(MappedWeights& weights);
// With the shares that follow. `maps`: a digest for each map.
[[nodiscard]] std::shared_ptr<const WeightSums> make_sums(const MappedWeights& weights,
                                                          std::vector<Digest> maps);

// Reads the weights: a digest for each map. kMismatch, naming the parameter, if one holds a value
// that its conversion makes of nothing.
[[nodiscard]] Result<std::vector<Digest>> read_sums(const MappedWeights& weights);
// Reads the weights, and compares. kMismatch, naming the first map that differs.
[[nodiscard]] Status check_sums(const MappedWeights& weights, const WeightSums& expected);

// Reads the weights, and compares with nothing.
[[nodiscard]] Result<LookedShares> look_at(const MappedWeights& weights);

// Of a full version, worked out where its bytes lie: the digest of each tensor, and of what each
// map will hold.
struct VersionSums {
  std::vector<Digest> tensors, maps;
};
[[nodiscard]] Result<VersionSums> sums_of_version(const MappedWeights& weights,
                                                  const VersionSource& version);

// What each map holds once these changes are in: `changes` of each, if the memory measured it; else
// their old values are there.
[[nodiscard]] Result<std::vector<Digest>> sums_after(const MappedWeights& weights,
                                                     std::vector<Digest> before,
                                                     std::span<const ChangePart> parts,
                                                     std::span<const Digest> changes);

// A tensor on the host, and one place where it should lie.
struct SourcedMap {
  WeightMap map;
  std::span<const std::byte> tensor;
};
// Whether each place holds the tensor's values, converted, to the bit. Reads all of both; compares
// digests in the place's own type, so that every conversion can be compared, also one that loses
// bits.
[[nodiscard]] Result<std::vector<bool>> hold_sources(std::span<const SourcedMap> maps,
                                                     WeightMemory& memory, unsigned threads);

}  // namespace driftless
