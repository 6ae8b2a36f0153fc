// SPDX-License-Identifier: Apache-2.0
#include "plugin/publish/block_maxima.h"

#include <algorithm>
#include <set>

namespace driftless {

MaximaMessage BlockMaxima::merge(const std::vector<MaximaMessage>& ranks) {
  MaximaMessage merged;
  std::set<BlockKey> changed;
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].all) {
      merged.all = true;
      for (auto& [key, sizes] : of_) sizes.erase(rank);
    }
    for (const auto& [key, size] : ranks[rank].maxima) {
      of_[key][rank] = size;
      changed.insert(key);
    }
  }
  for (const auto& [key, sizes] : of_) {
    if (!merged.all && !changed.contains(key)) continue;
    std::uint16_t most = 0;
    for (const auto& [rank, size] : sizes) most = std::max(most, size);
    merged.maxima.push_back({key, most});
  }
  return merged;
}

}  // namespace driftless
