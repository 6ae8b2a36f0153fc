// SPDX-License-Identifier: Apache-2.0
// The weights of every version that a publisher tried to seal.
#pragma once

#include <array>
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
  // All weights that a run and a version may stand for: several if attempts failed, or if two
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

// A copy of the first tensor under another name, as models store tied weights.
inline constexpr const char* kTiedFrom = "a.embed.weight";
inline constexpr const char* kTied = "z.lm_head.weight";

// A model: `shape` decides its tensors, `values` their bits. It is so small that thousands of
// versions take little time: matrices with odd sides, vectors, scalars and tensors without
// elements, of many types. The first tensor has elements.
inline Weights model_weights(std::uint64_t shape, std::uint64_t values) {
  constexpr std::array kTypes{DType::kBF16,   DType::kBF16, DType::kBF16, DType::kF32, DType::kF16,
                              DType::kF8E4M3, DType::kI64,  DType::kU8,   DType::kF64, DType::kI32};
  std::mt19937_64 form(shape), bits(values);
  Weights weights;
  weights[kTiedFrom] = random_tensor(DType::kBF16, {1 + form() % 7, 1 + form() % 6}, bits);
  const std::uint64_t more = 2 + form() % 4;
  for (std::uint64_t i = 0; i < more; ++i) {
    std::vector<std::uint64_t> sides;
    switch (form() % 6) {
      case 0: sides = {1 + form() % 9}; break;
      case 1: break;  // a scalar
      case 2: sides = {form() % 3, 3, 1 + form() % 2}; break;
      default: sides = {1 + form() % 6, 1 + form() % 5}; break;
    }
    const DType type = kTypes[form() % kTypes.size()];
    weights[concat("b.", i, ".weight")] = random_tensor(type, std::move(sides), bits);
  }
  weights["c.norm.weight"] = random_tensor(DType::kBF16, {4}, bits);
  if (form() % 4 == 0) weights[kTied] = weights[kTiedFrom];
  return weights;
}

// The next step of training: a few units change; now and then all units of a tensor, or none.
inline Weights trained_weights(Weights weights, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool dense = random() % 12 == 0;
  for (auto& [name, tensor] : weights) {
    if (random() % 4 == 0 || tensor.bytes.empty()) continue;
    const std::size_t flips = dense ? tensor.bytes.size() : 1 + random() % 3;
    for (std::size_t i = 0; i < flips; ++i) {
      tensor.bytes[random() % tensor.bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    }
  }
  if (weights.contains(kTied)) weights[kTied] = weights[kTiedFrom];
  return weights;
}

}  // namespace driftless::testing
