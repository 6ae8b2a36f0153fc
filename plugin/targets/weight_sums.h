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

// What maps will hold of a full version. `tensors`: the digest of each tensor of it.
[[nodiscard]] Result<std::vector<Digest>> sums_of_version(const MappedWeights& weights,
                                                          const VersionSource& version,
                                                          std::span<const Digest> tensors);
// The digest of each tensor of a full version, worked out where its bytes lie.
[[nodiscard]] Result<std::vector<Digest>> tensor_sums_of_version(const MappedWeights& weights,
                                                                 const VersionSource& version);

// What each map holds once these changes, whose old values are there, are in.
[[nodiscard]] Result<std::vector<Digest>> sums_after(const MappedWeights& weights,
                                                     std::vector<Digest> before,
                                                     std::span<const ChangePart> parts);

// What those units that a map has contribute to the digest of a tensor, read from the tensor itself
// and not through the map: `bytes`, on the host, are of the tensor from unit `first` on.
[[nodiscard]] Digest sum_source(const WeightMap& map, const DigestTensorKey& key,
                                std::uint64_t first, std::span<const std::byte> bytes);

// A tensor on the host, and one place where it should lie.
struct SourcedMap {
  WeightMap map;
  std::span<const std::byte> tensor;
};
// Whether each place holds the tensor's values, converted, to the bit. Reads all of both.
[[nodiscard]] Result<std::vector<bool>> hold_sources(std::span<const SourcedMap> maps,
                                                     WeightMemory& memory, unsigned threads);

}  // namespace driftless
