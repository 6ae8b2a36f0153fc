// What a full version changes in a module that holds another version: found by comparing every unit
// that goes through a map, so that only those are written, in O(changed), and can be taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/status.h"
#include "plugin/targets/delta_pieces.h"
#include "plugin/targets/dense_stretches.h"
#include "plugin/targets/module_change.h"

namespace driftless {

class ModuleDifference {
 public:
  // Where more than this share of the module differs, the pieces would take more memory than the
  // version itself has.
  static constexpr std::uint64_t kDenseShare = 8;  // one in

  // Of all stretches of a full version, in their order. Nothing where the module differs in more
  // than its share. Memory: about 40 MB, and for each unit that differs 4 bytes and twice its
  // width.
  [[nodiscard]] static Result<std::optional<ModuleDifference>> find(
      const ModuleWeights& weights, std::span<const DenseStretch> stretches);

  // In the order of the tensors; as long as this lives.
  [[nodiscard]] std::span<const DeltaPiece> pieces() const { return pieces_; }
  [[nodiscard]] std::uint64_t units() const { return units_; }

 private:
  friend class DifferenceFinder;
  struct Found {
    std::vector<std::uint32_t> offsets;
    std::vector<std::byte> values, old_values;
  };
  std::vector<Found> found_;  // what the pieces point to
  std::vector<DeltaPiece> pieces_;
  std::uint64_t units_ = 0;
};

}  // namespace driftless
