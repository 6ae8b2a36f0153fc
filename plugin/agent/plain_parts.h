// SPDX-License-Identifier: Apache-2.0
// Uncompressed parts: the form in which an agent offers a version's parts on its host's own road.
#pragma once

#include "core/file_system.h"
#include "core/layout.h"
#include "formats/manifest.h"

namespace driftless {

[[nodiscard]] bool has_frames(const Manifest& manifest);

// The encoding after inflation. Frames of `deltas_zstd` become frames of `deltas`. Compressed flush
// files become plain ones in the same encoding: a flush file's first bytes show whether it is
// compressed. Everything else, including `xor` of hf_delta, stays.
[[nodiscard]] Encoding plain_encoding(const Manifest& manifest);

// The memory that write_plain_part() takes beside the part.
[[nodiscard]] Result<std::uint64_t> inflated_bytes(const Manifest& manifest, const MappedFile& part,
                                                   const WeightLayout& layout);

// The result for a part that was rewritten as a frame; empty if it was copied.
struct PlainPart {
  std::uint64_t delta_bytes = 0;  // of its positions and values
  std::optional<Hash128> table;
};
// Writes the part, whose hash was compared, into a new file and syncs it.
[[nodiscard]] Result<PlainPart> write_plain_part(const Manifest& manifest, const MappedFile& part,
                                                 const WeightLayout& layout, File& out);

}  // namespace driftless
