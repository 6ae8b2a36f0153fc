// SPDX-License-Identifier: Apache-2.0
// The layouts of a publication, and the properties of each that publishers and configurations need.
// Code uses these instead of comparing names.
#pragma once

#include "core/layout.h"
#include "formats/encoding.h"
#include "formats/manifest.h"

namespace driftless {

struct PublicationFormat {
  DirectoryLayout layout = DirectoryLayout::kFrames;
  // The version is files, carried by a road with a directory; otherwise the road carries frames in
  // its own way.
  bool in_directory = false;
  Encoding usual = Encoding::kDeltas;  // unless the configuration chooses another
  std::string_view encodings;          // the possible encodings, for messages
  // A part may contain blocks of tensors, and the encoding may change from version to version. If
  // false, other tools read the files: they take only whole tensors, in one encoding.
  bool takes_blocks = true;
  // A delta consists of one shard per rank, an index, and the checksum of every tensor. It cannot
  // contain a whole tensor among changes.
  bool delta_shards = false;
  // Readers expect full versions among the versions: if an anchor is due, the version itself is
  // full.
  bool anchors_among_versions = false;

  // Whether a delta or a full version is written as shards; then the leader adds an index.
  [[nodiscard]] bool sharded(bool full) const { return delta_shards || (full && !takes_blocks); }
  // Whether deltas can use this encoding. Every layout can hold full versions.
  [[nodiscard]] bool carries(Encoding encoding) const;
  // Whether full versions are checkpoints, with the model's other files beside the weights.
  [[nodiscard]] bool carries_assets() const { return !takes_blocks; }
  // The layout that the manifest names.
  [[nodiscard]] DirectoryLayout layout_of(bool full) const {
    return sharded(full) ? DirectoryLayout::kHfDelta : layout;
  }
  // Whether encoding needs the new bytes of changed tensors, beside the changes.
  [[nodiscard]] bool reads_weights(Encoding encoding) const {
    return delta_shards || encoding == Encoding::kCompact;
  }
};

[[nodiscard]] const PublicationFormat& publication_format(DirectoryLayout layout);

// Files for other tools have positions of 4 bytes (`limit`: 2^32). If a tensor's positions do not
// fit, it is published in `encoding`, which has no positions, or gaps between them. Empty: all
// positions fit.
struct WidePositions {
  const TensorSpec* tensor = nullptr;
  Encoding encoding = Encoding::kDeltas;
};
[[nodiscard]] std::optional<WidePositions> find_wide_positions(const PublicationFormat& format,
                                                               Encoding encoding,
                                                               const WeightLayout& layout,
                                                               std::uint64_t limit);

}  // namespace driftless
