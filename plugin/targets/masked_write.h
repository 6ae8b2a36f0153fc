// SPDX-License-Identifier: Apache-2.0
// One copy of a masked overwrite: a dense tensor whose units are new values or a sentinel goes
// through a map, and only what is not the sentinel is written.
#pragma once

#include "plugin/targets/weight_memory.h"

namespace driftless {

struct MaskedSource {
  const std::byte* data = nullptr;  // unit 0 of the tensor that the map is of
  std::uint64_t sentinel = 0;       // its low bits, as many as a unit has
};

// What was written, and what was there before. Reads the source once, and of the target what it
// changes. Memory: per written unit 4 bytes and its width.
class MaskedWrite {
 public:
  [[nodiscard]] static Result<MaskedWrite> make(const WeightMap& into, const MaskedSource& source,
                                                unsigned threads);
  // The same if it is known which units of the source are new: O(changed), and the source is not
  // read. `pieces` are of the tensor that the map is of.
  [[nodiscard]] static Result<MaskedWrite> make(const WeightMap& into,
                                                std::span<const DeltaPiece> pieces,
                                                unsigned threads);
  // Puts back what was there.
  void undo();

 private:
  struct Block {
    std::uint64_t origin = 0;
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> old_values;
  };
  // Of a block's offsets: keeps what is there, and writes.
  void exchange(Block& block, const std::byte* values) const;
  // All or nothing: itself, or the failure, and what was written before it is put back.
  [[nodiscard]] Result<MaskedWrite> done(Status written);

  WeightMap into_;
  std::vector<Block> blocks_;
};

}  // namespace driftless
