// SPDX-License-Identifier: Apache-2.0
// TensorChanges: what a version, or several folded, changes in a target's weights, decoded: pieces
// that go through the maps, and the new values of the tensors that an external writer holds.
#pragma once

#include "plugin/targets/mapped_weights.h"
#include "plugin/targets/version_fold.h"

namespace driftless {

// Filled once, by the update that it is part of; then valid as long as somebody has it, and may be
// used from any thread.
class TensorChanges {
 public:
  // `versions`: adjoining deltas, or one full version.
  TensorChanges(std::shared_ptr<const MappedWeights> weights, std::vector<VersionSource> versions);

  // Of deltas: decodes and folds them. kUnsupported, naming the tensor, if one changes that cannot
  // be followed; in `xor`, `overwrite` and `compact`, which are changes to a tensor's own bits,
  // also if it is converted here, or the writer's; in `compact`, if some of a block is held here.
  // `decoded`: blocks of the first version, decoded with the weights as they are.
  [[nodiscard]] Status fold(DecodedBlocks decoded = {});
  // The same of the writer's tensors alone: the memory decodes the others by itself. Positional
  // deltas.
  [[nodiscard]] Status fold_external();
  // Of a full version: what differs is all that goes through the maps.
  void only(DeltaPieces difference) { pieces_ = std::move(difference); }
  // kUnsupported, naming the tensor, if one changes that cannot be followed.
  [[nodiscard]] Status check_followed() const;
  [[nodiscard]] const std::vector<VersionSource>& versions() const { return versions_; }
  [[nodiscard]] const WeightLayout& layout() const { return weights_->layout; }

  // For the maps. No two touch the same unit. In the order of the tensors.
  [[nodiscard]] std::span<const DeltaPiece> all_pieces() const { return pieces_.pieces; }
  [[nodiscard]] std::uint64_t units() const { return pieces_.units; }

  // For the writer. Its tensors that change, ascending; of a full version all of them.
  [[nodiscard]] std::span<const std::uint32_t> tensors() const { return external_; }
  [[nodiscard]] std::uint64_t changed_units(std::uint32_t tensor) const;
  // Whether every unit is new: a full version.
  [[nodiscard]] bool whole() const { return versions_.front().version().full(); }
  // Bits that none of the tensor's new values has; nothing if each has been taken.
  [[nodiscard]] std::optional<std::uint64_t> absent_bits(std::uint32_t tensor) const;
  // The changes, as they are folded; none if it is whole().
  [[nodiscard]] std::span<const DeltaPiece> pieces(std::uint32_t tensor) const;
  // Writes the new values into `data`, which has room for all of the tensor. With `only`, those
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
  std::vector<std::vector<std::byte>> frame_bytes_;  // of the effect
  std::vector<Frame> frames_;
  DeltaPieces pieces_;
  std::vector<std::uint32_t> external_;
};

// Adds the blocks of a part that is a frame of `compact`, as far as they can be decoded here.
// Nothing of others. The part outlives what is added.
[[nodiscard]] Status decode_ahead(const std::shared_ptr<const MappedWeights>& weights,
                                  const MappedFile& part, DecodedBlocks& decoded);

// What a full version, whose bytes lie on the host, changes in weights that are another version, so
// that only that is written, in O(changed), and can be taken back. Nothing if the weights differ in
// more than one unit in eight. Memory: about 40 MB, and for each unit that differs 4 bytes and
// twice its width.
[[nodiscard]] Result<std::optional<DeltaPieces>> find_difference(const MappedWeights& weights,
                                                                 const VersionSource& version);

// The other way: all of it is written, through the maps. `changes` is a full version. With `keep`
// what it replaces is read first, and kept on the host; without, there is no way back.
[[nodiscard]] Result<std::unique_ptr<PlacedChanges>> make_dense_change(
    std::shared_ptr<const MappedWeights> weights, std::shared_ptr<const TensorChanges> changes,
    bool keep);

}  // namespace driftless
