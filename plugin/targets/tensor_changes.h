// SPDX-License-Identifier: Apache-2.0
// TensorChanges: what one version, or several folded ones, change in a target's weights: pieces
// that go through the maps, and new values for the tensors of an external writer.
#pragma once

#include "plugin/targets/mapped_weights.h"
#include "plugin/targets/version_fold.h"

namespace driftless {

// Filled once, by the update that it belongs to; then immutable, and usable from any thread as long
// as it is referenced.
class TensorChanges {
 public:
  // `versions`: adjoining deltas, or one full version.
  TensorChanges(std::shared_ptr<const MappedWeights> weights, std::vector<VersionSource> versions);

  // Decodes deltas and folds them. `decoded`: blocks of the first version that are already decoded
  // with the present weights. kUnsupported, naming the tensor, if the deltas change
  //   a tensor that cannot be followed (MappedParts::refused);
  //   in `xor`, `overwrite` or `compact`, which need the tensor's own old bits: a tensor that is
  //     held only converted or that the writer writes;
  //   in `compact`: a block that is held only in part.
  [[nodiscard]] Status fold(DecodedBlocks decoded = {});
  // For positional deltas: as fold(), but only for the writer's tensors. The memory decodes the
  // others.
  [[nodiscard]] Status fold_external();
  // For a full version: only these differences go through the maps.
  void only(DeltaPieces difference) { pieces_ = std::move(difference); }
  // kUnsupported, naming the tensor, if the versions change one that cannot be followed.
  [[nodiscard]] Status check_followed() const;
  [[nodiscard]] const std::vector<VersionSource>& versions() const { return versions_; }
  [[nodiscard]] const WeightLayout& layout() const { return weights_->layout; }

  // For the maps: all pieces, in the order of the tensors. No two touch the same unit.
  [[nodiscard]] std::span<const DeltaPiece> all_pieces() const { return pieces_.pieces; }
  [[nodiscard]] std::uint64_t units() const { return pieces_.units; }

  // For the writer: its tensors that change, ascending; for a full version all of them.
  [[nodiscard]] std::span<const std::uint32_t> tensors() const { return external_; }
  [[nodiscard]] std::uint64_t changed_units(std::uint32_t tensor) const;
  // Whether this is a full version, in which every unit is new.
  [[nodiscard]] bool whole() const { return versions_.front().version().full(); }
  // A bit pattern that none of the tensor's new values has. Nothing if whole(), or if none is
  // found.
  [[nodiscard]] std::optional<std::uint64_t> absent_bits(std::uint32_t tensor) const;
  // The folded changes; none if whole().
  [[nodiscard]] std::span<const DeltaPiece> pieces(std::uint32_t tensor) const;
  // Writes the new values into `data`, which holds the whole tensor. With `only`, writes only the
  // values that have these bits.
  void write(std::uint32_t tensor, std::byte* data, std::optional<std::uint64_t> only) const;

 private:
  [[nodiscard]] Status fold_versions(bool external_only);
  void note_external();
  [[nodiscard]] Status fold_coded(DecodedBlocks decoded);
  [[nodiscard]] Status fold_effect();
  [[nodiscard]] Status check_readable() const;
  [[nodiscard]] unsigned width(std::uint32_t tensor) const {
    return unit_bytes(weights_->layout[tensor].dtype);
  }

  std::shared_ptr<const MappedWeights> weights_;
  std::vector<VersionSource> versions_;
  std::vector<std::vector<std::byte>> frame_bytes_;  // of the fold's result
  std::vector<Frame> frames_;
  DeltaPieces pieces_;
  std::vector<std::uint32_t> external_;
};

// If the part is a frame in `compact`: decodes its blocks of the tensors that these weights hold
// unconverted, and adds them to `decoded`; if one block fails, adds none. Other frames add nothing;
// a part that is not a frame fails. The part outlives what is added.
[[nodiscard]] Status decode_ahead(const std::shared_ptr<const MappedWeights>& weights,
                                  const MappedFile& part, DecodedBlocks& decoded);

// Finds the units in which the weights, which hold another version, differ from a full version on
// the host. To write only these is O(changed), and can be undone. Returns nothing if more than one
// unit in eight differs. Memory: tens of megabytes, and for each differing unit 4 bytes and twice
// its width.
[[nodiscard]] Result<std::optional<DeltaPieces>> find_difference(const MappedWeights& weights,
                                                                 const VersionSource& version);

// The alternative to find_difference(): writes all of a full version through the maps. With `keep`
// the replaced values are read first and kept on the host; without it the commit cannot be undone.
[[nodiscard]] Result<std::unique_ptr<PlacedChanges>> make_dense_change(
    std::shared_ptr<const MappedWeights> weights, std::shared_ptr<const TensorChanges> changes,
    bool keep);

}  // namespace driftless
