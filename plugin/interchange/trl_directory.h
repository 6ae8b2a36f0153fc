// SPDX-License-Identifier: Apache-2.0
// Reads TRL's layout: anchors/step_%06d.safetensors with plain tensors, and deltas/step_%06d with
// `{name}.indices` and `{name}.values` (later: `.idx` and `.val`) of every changed tensor.
// Positions are absolute, or gaps under `encoding: gap_delta`. Step N is version N, and its delta
// holds the changes since step N - 1. The files name neither a base nor a checksum. Steps that
// Driftless wrote (trl_writer.h) name the digests before and after them.
#pragma once

#include <functional>

#include "core/layout.h"
#include "formats/version_dir.h"

namespace driftless {

// The directories that contain its files.
[[nodiscard]] std::vector<std::string> trl_directories(const std::string& directory);
struct TrlPlace {
  std::string directory, name;
};
[[nodiscard]] TrlPlace trl_place(const std::string& directory, std::uint64_t step, bool anchor);
// The steps that have an anchor or a delta, ascending.
[[nodiscard]] Result<std::vector<std::uint64_t>> list_trl_steps(FileSystem& fs,
                                                                const std::string& directory);
// Opens a step for weights at version `newest`: its delta if it follows that version, otherwise its
// anchor. `path` is the directory of the step's only file. kNotFound if it has neither.
[[nodiscard]] Result<VersionDirectory> open_trl_step(FileSystem& fs, const std::string& directory,
                                                     std::uint64_t step, std::uint64_t newest);
// Converts `file` into parts that VersionSource reads, flush files of a delta or the file itself,
// and makes `version` name them. A tensor that an anchor does not contain (frozen, tied) keeps its
// value: `current` returns its bytes. kCorrupt if the file contradicts itself, its number or its
// counts; kWrongLayout, naming the tensor; kUnsupported for an unknown encoding.
using CurrentBytes = std::function<std::span<const std::byte>(std::size_t tensor)>;
struct TrlStep {
  std::vector<MappedFile> parts;
  // The digests of all weights before and after the step, if Driftless wrote it.
  std::optional<Digest> base_digest, digest;
};
[[nodiscard]] Result<TrlStep> read_trl_step(const MappedFile& file, const WeightLayout& layout,
                                            const CurrentBytes& current, VersionDirectory& version);

}  // namespace driftless
