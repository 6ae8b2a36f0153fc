// SPDX-License-Identifier: Apache-2.0
// TRL's layout, read: anchors/step_%06d.safetensors with plain tensors, and deltas/step_%06d with
// `{name}.indices` and `{name}.values` of every changed tensor (later: `.idx` and `.val`),
// positions as they are or, under `encoding: gap_delta`, as gaps. A step stands for the version of
// its number, and a delta for what changed since the step before it: it names neither a base nor a
// checksum. Steps that Driftless wrote (trl_writer.h) name the digests before and after them.
#pragma once

#include <functional>

#include "core/layout.h"
#include "formats/version_dir.h"

namespace driftless {

// Where its files lie, and that of a step.
[[nodiscard]] std::vector<std::string> trl_directories(const std::string& directory);
struct TrlPlace {
  std::string directory, name;
};
[[nodiscard]] TrlPlace trl_place(const std::string& directory, std::uint64_t step, bool anchor);
// The steps of which there is an anchor or a delta, ascending.
[[nodiscard]] Result<std::vector<std::uint64_t>> list_trl_steps(FileSystem& fs,
                                                                const std::string& directory);
// A step for weights at version `newest`: its delta if that follows them, else its anchor. path is
// the directory of its only file. kNotFound if it has neither.
[[nodiscard]] Result<VersionDirectory> open_trl_step(FileSystem& fs, const std::string& directory,
                                                     std::uint64_t step, std::uint64_t newest);
// What `file` holds as parts that VersionSource reads, flush files of a delta or the file itself;
// `version` then names them. A tensor that an anchor does not hold (frozen, tied) stays as it is:
// `current` gives its bytes. kCorrupt if the file contradicts itself, its number or its counts;
// kWrongLayout, naming the tensor; kUnsupported for an encoding that is not known.
using CurrentBytes = std::function<std::span<const std::byte>(std::size_t tensor)>;
struct TrlStep {
  std::vector<MappedFile> parts;
  // Of all weights before and after it, if Driftless wrote it.
  std::optional<Digest> base_digest, digest;
};
[[nodiscard]] Result<TrlStep> read_trl_step(const MappedFile& file, const WeightLayout& layout,
                                            const CurrentBytes& current, VersionDirectory& version);

}  // namespace driftless
