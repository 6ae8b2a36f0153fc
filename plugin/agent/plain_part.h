// SPDX-License-Identifier: Apache-2.0
// A fetched part as the workers of a host get it: what is compressed is inflated once, here.
#pragma once

#include <cstdint>

#include "core/file_system.h"
#include "core/layout.h"
#include "core/status.h"
#include "formats/manifest.h"

namespace driftless {

// What a version's parts become. Frames of `deltas_zstd` are frames of `deltas` then, and
// compressed flush files plain ones (under the same encoding: a flush file says by its first bytes
// whether it is compressed). All else, `xor` of hf_delta among it, stays as it is.
[[nodiscard]] Encoding plain_encoding(const Manifest& manifest);

// Memory that write_plain_part() takes beside the part.
[[nodiscard]] Result<std::uint64_t> inflated_bytes(const Manifest& manifest, const MappedFile& part,
                                                   const WeightLayout& layout);

// Writes the part, whose hash was compared, into a new file and syncs it. Returns the bytes of the
// positions and values in it where it was made anew as a frame, else nothing.
[[nodiscard]] Result<std::uint64_t> write_plain_part(const Manifest& manifest,
                                                     const MappedFile& part,
                                                     const WeightLayout& layout, File& out);

}  // namespace driftless
