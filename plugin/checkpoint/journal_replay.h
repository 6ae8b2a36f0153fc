// SPDX-License-Identifier: Apache-2.0
// Writing a journal out into the checkpoint's files.
#pragma once

#include "core/digest.h"
#include "core/file_system.h"
#include "core/status.h"
#include "formats/checkpoint.h"
#include "plugin/checkpoint/journal.h"

namespace driftless {

// Writes every frame's values to their places, in parallel, and syncs the files. Idempotent: after
// a failure or a crash it is called again, and ends the same. Only stretches that hold changes are
// written. kMismatch, with nothing written, if a file was replaced (check_same_files()).
[[nodiscard]] Status replay_journal(FileSystem& fs, const Journal& journal,
                                    const Checkpoint& checkpoint, unsigned threads);

// The digest after replaying the journal, less the digest of the weights as they are now: the
// places that it touches are read, whatever they hold. So `digest now + this` is the digest that
// replaying ends with, known before anything is written.
[[nodiscard]] Result<Digest> journal_change(const Journal& journal, const Checkpoint& checkpoint,
                                            unsigned threads);

// kMismatch, naming the file, if a file of the checkpoint is not the one that is mapped any more:
// it was replaced by another or changed its size. What was read through the mapping then says
// nothing about what a write by its path would change.
[[nodiscard]] Status check_same_files(FileSystem& fs, const Checkpoint& checkpoint);

// Ok where every file of the checkpoint is the one that is mapped and can be patched in place:
// a regular file, writable, with no further hard link through which another checkpoint would change
// too.
[[nodiscard]] Status check_patchable(FileSystem& fs, const Checkpoint& checkpoint);

}  // namespace driftless
