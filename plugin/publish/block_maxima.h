// SPDX-License-Identifier: Apache-2.0
// The largest magnitudes of FP8 blocks that publisher ranks cut between them: each rank sends what
// it has of such a block, if that changed, and hears the largest of all. The weights themselves do
// not travel.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "core/status.h"

namespace driftless {

struct BlockKey {
  std::uint32_t tensor = 0;  // index of the matrix in the base checkpoint's layout
  std::uint32_t block = 0;   // row after row
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

struct BlockMaximum {
  BlockKey key;
  std::uint16_t size = 0;  // the bits of a bfloat16
};

// From every rank to the leader, and from the leader to all.
struct MaximaMessage {
  Status status;
  bool all = false;  // from a rank: of all its blocks, and it knows nothing of the others'
  std::vector<BlockMaximum> maxima;
};

// The leader's part: what each rank has.
class BlockMaxima {
 public:
  // What all ranks hear: what changed, or all of it if one of them knows nothing.
  [[nodiscard]] MaximaMessage merge(const std::vector<MaximaMessage>& ranks);

 private:
  std::map<BlockKey, std::map<std::uint32_t, std::uint16_t>> of_;  // by rank
};

}  // namespace driftless
