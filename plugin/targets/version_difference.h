// SPDX-License-Identifier: Apache-2.0
// What a full version changes in weights that are another version: found by comparing every unit
// that goes through a map, so that only those are written, in O(changed), and can be taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/status.h"
#include "plugin/targets/delta_pieces.h"
#include "plugin/targets/mapped_weights.h"

namespace driftless {

class VersionDifference {
 public:
  // If more than this share of the weights differs, the pieces would take more memory than the
  // version itself has.
  static constexpr std::uint64_t kDenseShare = 8;  // one in

  // Of a full version whose bytes lie on the host. Nothing if the weights differ in more than their
  // share. Memory: about 40 MB, and for each unit that differs 4 bytes and twice its width.
  [[nodiscard]] static Result<std::optional<VersionDifference>> find(const MappedWeights& weights,
                                                                     const VersionSource& version);

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
