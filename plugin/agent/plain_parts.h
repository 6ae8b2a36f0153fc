// SPDX-License-Identifier: Apache-2.0
// Parts without compression: what a version's parts become on a host's own road.
#pragma once

#include "core/file_system.h"
#include "core/layout.h"
#include "formats/manifest.h"

namespace driftless {

[[nodiscard]] bool has_frames(const Manifest& manifest);

// Frames of `deltas_zstd` become frames of `deltas`, and compressed flush files plain ones (under
// the same encoding: a flush file says by its first bytes whether it is compressed). All else,
// `xor` of hf_delta among it, stays as it is.
[[nodiscard]] Encoding plain_encoding(const Manifest& manifest);

// Memory that write_plain_part() takes beside the part.
[[nodiscard]] Result<std::uint64_t> inflated_bytes(const Manifest& manifest, const MappedFile& part,
                                                   const WeightLayout& layout);

// What became of a part that was made anew as a frame; else as it was.
struct PlainPart {
  std::uint64_t delta_bytes = 0;  // of the positions and values in it
  std::optional<Hash128> table;
};
// Writes the part, whose hash was compared, into a new file and syncs it.
[[nodiscard]] Result<PlainPart> write_plain_part(const Manifest& manifest, const MappedFile& part,
                                                 const WeightLayout& layout, File& out);

}  // namespace driftless
