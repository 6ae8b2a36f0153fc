// SPDX-License-Identifier: Apache-2.0
// The layouts of a publication, and what a publisher and a configuration must know of each. Code
// asks here instead of comparing names.
#pragma once

#include "core/layout.h"
#include "formats/encoding.h"
#include "formats/manifest.h"

namespace driftless {

struct PublicationFormat {
  DirectoryLayout layout = DirectoryLayout::kFrames;
  // Files, which a road with a directory carries; else the road carries frames in its own way.
  bool in_directory = false;
  Encoding usual = Encoding::kDeltas;  // if nobody chooses another
  std::string_view encodings;          // that it can carry, for people
  // A part holds blocks of tensors, and its encoding may change from version to version. Else the
  // readers are others: they take whole tensors, in one encoding.
  bool takes_blocks = true;
  // A delta is a shard for each rank, with an index and the checksum of every tensor. It cannot
  // carry a whole tensor among changes.
  bool delta_shards = false;
  // Readers look for whole versions among the versions: if an anchor is due, the version is whole.
  bool anchors_among_versions = false;

  // Whether a delta or a full version is written as shards, with an index that the leader adds.
  [[nodiscard]] bool sharded(bool full) const { return delta_shards || (full && !takes_blocks); }
  // Whether a version can be encoded so; whole versions always can.
  [[nodiscard]] bool carries(Encoding encoding) const;
  // Whole versions are checkpoints: other files of the model lie beside the weights.
  [[nodiscard]] bool carries_assets() const { return !takes_blocks; }
  // The layout that the manifest names.
  [[nodiscard]] DirectoryLayout layout_of(bool full) const {
    return sharded(full) ? DirectoryLayout::kHfDelta : layout;
  }
  // Whether the bytes of changed tensors are read, beside what changed in them.
  [[nodiscard]] bool reads_weights(Encoding encoding) const {
    return delta_shards || encoding == Encoding::kCompact;
  }
};

[[nodiscard]] const PublicationFormat& publication_format(DirectoryLayout layout);

// Files that others read hold positions of 4 bytes (`limit`: 2^32). A tensor whose positions do not
// fit is published in `encoding`, which has no positions, or gaps. Empty: all fit.
struct WidePositions {
  const TensorSpec* tensor = nullptr;
  Encoding encoding = Encoding::kDeltas;
};
[[nodiscard]] std::optional<WidePositions> find_wide_positions(const PublicationFormat& format,
                                                               Encoding encoding,
                                                               const WeightLayout& layout,
                                                               std::uint64_t limit);

}  // namespace driftless
