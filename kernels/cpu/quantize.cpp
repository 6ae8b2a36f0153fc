// SPDX-License-Identifier: Apache-2.0
// Copies a strip of blocks while searching for its largest weights, so that the second pass reads
// it from the cache.
#include <algorithm>

#include "kernels/cpu/baseline.h"
#include "kernels/fp8_rule.h"

namespace driftless::cpu {

void quantize_part(LargestBF16 largest_bf16, CodesOfBF16 codes_of_bf16, QuantizeRule rule,
                   const MatrixPart& part, const void* weights, std::uint16_t* largest,
                   void* codes) {
  constexpr std::uint64_t kStrip = kStripBlocks * kQuantizeBlock;
  const auto* const from = static_cast<const std::byte*>(weights);
  auto* const to = static_cast<std::byte*>(codes);
  const std::uint64_t blocks_wide = part.blocks_wide();
  Strip strip;
  for (std::uint64_t i = 0, high = 0; i < part.rows; i += high) {
    high = std::min(kQuantizeBlock - (part.row + i) % kQuantizeBlock, part.rows - i);
    for (std::uint64_t j = 0, wide = 0; j < part.columns; j += wide) {
      const std::uint64_t inside = (part.column + j) % kQuantizeBlock;
      wide = std::min(part.columns - j, inside > 0 ? kQuantizeBlock - inside : kStrip);
      const std::uint64_t at = i * part.stride + j;
      std::uint16_t found[kStripBlocks];
      largest_bf16(from + at * sizeof(std::uint16_t), static_cast<std::uint32_t>(high),
                   static_cast<std::uint32_t>(wide), part.stride, strip, found);
      std::uint16_t* const known = largest + (part.row + i) / kQuantizeBlock * blocks_wide +
                                   (part.column + j) / kQuantizeBlock;
      CodeRule code_rules[kStripBlocks] = {};
      for (std::uint64_t block = 0; block < quantize_blocks(wide); ++block) {
        known[block] = std::max(known[block], found[block]);
        if (codes != nullptr) code_rules[block] = fp8_rule(rule, known[block]).codes;
      }
      if (codes == nullptr) continue;
      codes_of_bf16(code_rules, strip, static_cast<std::uint32_t>(high),
                    static_cast<std::uint32_t>(wide), part.stride, to + at);
    }
  }
}

}  // namespace driftless::cpu
