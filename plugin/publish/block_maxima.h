// SPDX-License-Identifier: Apache-2.0
// The largest magnitudes of FP8 blocks that several publisher ranks own parts of. Each rank sends
// the maximum of its part if it changed, and receives the maximum over all parts. Only maxima are
// sent, no weights.
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
  std::uint32_t block = 0;   // blocks count row after row
  friend auto operator<=>(const BlockKey&, const BlockKey&) = default;
};

struct BlockMaximum {
  BlockKey key;
  std::uint16_t size = 0;  // the bits of a bfloat16
};

// Every rank sends one to the leader, and the leader sends one to all.
struct MaximaMessage {
  Status status;
  // Set by a rank that lists all its blocks and has none of the other ranks' maxima yet.
  bool all = false;
  std::vector<BlockMaximum> maxima;
};

// The leader's side: keeps each rank's maxima.
class BlockMaxima {
 public:
  // The message for all ranks: the maxima that changed, or all of them if a rank set `all`.
  [[nodiscard]] MaximaMessage merge(const std::vector<MaximaMessage>& ranks);

 private:
  std::map<BlockKey, std::map<std::uint32_t, std::uint16_t>> of_;  // by rank
};

}  // namespace driftless
