// SPDX-License-Identifier: Apache-2.0
// A masked overwrite: a loader copies a full-shape tensor, in which unchanged units have the
// sentinel, into a parameter; only the other units are written.
#pragma once

#include "plugin/targets/weight_memory.h"

namespace driftless {

struct MaskedSource {
  const std::byte* data = nullptr;  // unit 0 of the map's tensor
  std::uint64_t sentinel = 0;       // as many low bits as a unit has; the others are not used
};

// One copy of a tensor into a parameter, with the old values of the units that it wrote. make()
// writes; it reads the source once, and only the changed units of the parameter. Memory: for each
// written unit 4 bytes and its width.
class MaskedWrite {
 public:
  [[nodiscard]] static Result<MaskedWrite> make(const WeightMap& into, const MaskedSource& source,
                                                unsigned threads);
  // The same if the changed units of the source are known: O(changed), without reading the source.
  // `pieces` belong to the map's tensor.
  [[nodiscard]] static Result<MaskedWrite> make(const WeightMap& into,
                                                std::span<const DeltaPiece> pieces,
                                                unsigned threads);
  // Puts back the old values.
  void undo();

 private:
  struct Block {
    std::uint64_t origin = 0;
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> old_values;
  };
  // Saves the old values at a block's offsets, and writes the new ones.
  void exchange(Block& block, const std::byte* values) const;
  // All or nothing: returns this write; or, after a failure, puts the old values back and returns
  // the failure.
  [[nodiscard]] Result<MaskedWrite> done(Status written);

  WeightMap into_;
  std::vector<Block> blocks_;
};

}  // namespace driftless
