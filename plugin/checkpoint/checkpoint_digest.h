// SPDX-License-Identifier: Apache-2.0
// The digest of a checkpoint's weights, read from its files.
#pragma once

#include "core/digest.h"
#include "formats/checkpoint.h"
#include "plugin/targets/version_stager.h"

namespace driftless {

// Reads every byte once, on `threads` threads.
[[nodiscard]] Digest digest_checkpoint(const Checkpoint& checkpoint, unsigned threads,
                                       const Progress& progress = {});

}  // namespace driftless
