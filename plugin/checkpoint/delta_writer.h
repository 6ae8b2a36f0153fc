// SPDX-License-Identifier: Apache-2.0
// Makes a version: the exact delta between two checkpoints, as a version directory.
#pragma once

#include "plugin/targets/version_stager.h"

namespace driftless {

struct DeltaOptions {
  std::string old_checkpoint;
  std::string new_checkpoint;
  std::string directory;  // receives weight_v{N:06d}/
  DirectoryLayout directory_layout = DirectoryLayout::kHfDelta;
  std::optional<Encoding> encoding;  // default: hf_delta xor, flush deltas_zstd, frames compact
  ChecksumKind checksum = ChecksumKind::kXxh3_128;
  std::optional<std::uint64_t> version;       // default: one past the newest in `directory`
  std::optional<std::uint64_t> base_version;  // default: version - 1
  std::uint64_t buffer_bytes = std::uint64_t{64} << 20;  // of a flush file or frame, uncompressed
  unsigned threads = 1;
  Progress progress;  // may be empty; counts the bytes of the weights that were compared
};

struct DeltaReport {
  Manifest manifest;
  std::string path;               // of the version directory
  std::uint64_t total_bytes = 0;  // of all files in it
  double seconds = 0;
  std::vector<std::string> notes;  // files and tensors that were left out
};

// Compares, encodes and publishes. If `directory` holds the base version with a manifest, the new
// version joins its run, and the old checkpoint must have the base's digest (kWrongBase otherwise).
// Nothing appears in `directory` unless every step succeeded. Memory: a few buffers, whatever the
// size of the checkpoints.
[[nodiscard]] Result<DeltaReport> write_delta(FileSystem& fs, const DeltaOptions& options);

}  // namespace driftless
