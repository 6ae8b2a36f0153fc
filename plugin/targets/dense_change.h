// SPDX-License-Identifier: Apache-2.0
// DenseChange: a full version that is written whole, through the maps. What it replaces is kept on
// the host, so that it can be taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/status.h"
#include "plugin/targets/mapped_weights.h"
#include "plugin/targets/tensor_changes.h"

namespace driftless {

// What all maps lead to, as it lies there: a copy in host memory, as large as the weights.
class WeightCopy {
 public:
  // Reads them.
  [[nodiscard]] Status take(const MappedWeights& weights);
  [[nodiscard]] Status put_back(const MappedWeights& weights);

 private:
  struct Extent {
    std::uint64_t begin = ~std::uint64_t{0}, end = 0;
    std::vector<WeightMap> maps;   // onto themselves: what lies between them is not touched
    std::vector<std::byte> bytes;  // [begin, end)
  };
  template <typename Use>
  Status each_block(const MappedWeights& weights, const Use& use);

  std::map<std::pair<std::byte*, unsigned>, Extent> extents_;
};

class DenseChange final : public PlacedChanges {
 public:
  // `changes` is a full version.
  DenseChange(std::shared_ptr<const MappedWeights> weights,
              std::shared_ptr<const TensorChanges> changes);
  // Without it there is no way back. The weights are read.
  [[nodiscard]] Status keep();

  [[nodiscard]] Result<std::optional<std::size_t>> write() override;
  [[nodiscard]] Status take_back() override;
  [[nodiscard]] std::span<const Digest> measured() const override { return {}; }

 private:
  struct Stretch {
    std::uint32_t tensor = 0;
    DensePiece piece;
  };
  std::shared_ptr<const MappedWeights> weights_;
  std::shared_ptr<const TensorChanges> changes_;
  std::vector<Stretch> stretches_;
  WeightCopy kept_;
  bool has_kept_ = false;
};

}  // namespace driftless
