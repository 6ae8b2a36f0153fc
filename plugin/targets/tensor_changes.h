// SPDX-License-Identifier: Apache-2.0
// TensorChanges: the decoded changes that one or several folded versions make to a target's
// weights: pieces that go through the maps, and the new values of the tensors that an external
// writer holds.
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

  // For deltas: decodes and folds them. kUnsupported, naming the tensor, if they change one that
  // cannot be followed. Decoding `xor`, `overwrite` and `compact` reads a tensor's own old bits, so
  // they are also kUnsupported for a tensor that is held only converted or belongs to the writer,
  // and `compact` for a block of which only a part is held here. `decoded`: blocks of the first
  // version, already decoded with the present weights.
  [[nodiscard]] Status fold(DecodedBlocks decoded = {});
  // As fold(), for positional deltas, but only for the writer's tensors: the memory decodes the
  // others itself.
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
  // A bit pattern that none of the tensor's new values has; nothing if none is found or if whole().
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

// Decodes those blocks of a `compact` frame that can be decoded here, and adds them to `decoded`.
// Other frames add nothing; a part that is no frame fails. The part outlives what is added.
[[nodiscard]] Status decode_ahead(const std::shared_ptr<const MappedWeights>& weights,
                                  const MappedFile& part, DecodedBlocks& decoded);

// The differences between a full version, whose bytes lie on the host, and weights that hold
// another version. To write only these is O(changed), and can be taken back. Nothing if more than
// one unit in eight differs. Memory: about 40 MB, and for each differing unit 4 bytes and twice its
// width.
[[nodiscard]] Result<std::optional<DeltaPieces>> find_difference(const MappedWeights& weights,
                                                                 const VersionSource& version);

// The alternative to find_difference(): writes the whole version, through the maps. `changes` is a
// full version. With `keep` the replaced values are read first and kept on the host; without it the
// commit cannot be taken back.
[[nodiscard]] Result<std::unique_ptr<PlacedChanges>> make_dense_change(
    std::shared_ptr<const MappedWeights> weights, std::shared_ptr<const TensorChanges> changes,
    bool keep);

}  // namespace driftless
