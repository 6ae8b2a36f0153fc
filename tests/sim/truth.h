// SPDX-License-Identifier: Apache-2.0
// What was published: the weights of every version that a publisher tried to seal.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/hash128.h"
#include "support/published_run.h"

namespace driftless::testing {

struct KnownWeights {
  Weights weights;
  Digest digest;
};

class Truth {
 public:
  void add(const Hash128& run, std::uint64_t version, const Weights& weights) {
    std::vector<KnownWeights>& tried = versions_[{run.high, run.low, version}];
    for (const KnownWeights& known : tried) {
      if (same(known.weights, weights)) return;
    }
    tried.push_back({weights, digest_of(weights)});
  }
  void add_base(const Weights& weights) { bases_.push_back({weights, digest_of(weights)}); }
  // All that may be meant by a run and a version: more than one where attempts failed, or where two
  // publishers wrote.
  [[nodiscard]] const std::vector<KnownWeights>& of(const Hash128& run,
                                                    std::uint64_t version) const {
    static const std::vector<KnownWeights> none;
    const auto found = versions_.find({run.high, run.low, version});
    if (found != versions_.end()) return found->second;
    return version == 0 ? bases_ : none;  // announced, and its publisher is not open yet
  }

 private:
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>, std::vector<KnownWeights>>
      versions_;
  std::vector<KnownWeights> bases_;
};

// Small enough that thousands of versions take no time; every tensor can be halved by rows.
inline Weights small_weights(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  weights["a.up.weight"] = random_tensor(DType::kBF16, {6, 5}, random);
  weights["b.down.weight"] = random_tensor(DType::kF32, {4, 3}, random);
  weights["c.scale"] = random_tensor(DType::kF8E4M3, {8}, random);
  weights["d.norm.weight"] = random_tensor(DType::kBF16, {4}, random);
  return weights;
}

// The next step of training: a few units change; now and then all of them, or none of a tensor.
inline Weights trained_weights(Weights weights, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool dense = random() % 12 == 0;
  for (auto& [name, tensor] : weights) {
    if (random() % 4 == 0) continue;
    const std::size_t flips = dense ? tensor.bytes.size() : 1 + random() % 3;
    for (std::size_t i = 0; i < flips; ++i) {
      tensor.bytes[random() % tensor.bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    }
  }
  return weights;
}

}  // namespace driftless::testing
