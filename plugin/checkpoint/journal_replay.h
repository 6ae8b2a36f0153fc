// Writing a journal out into the checkpoint's files.
#pragma once

#include "core/file_system.h"
#include "core/status.h"
#include "formats/checkpoint.h"
#include "plugin/checkpoint/journal.h"

namespace driftless {

// Writes every frame's values to their places, in parallel, and syncs the files. Idempotent: after
// a failure or a crash it is called again, and ends the same. Only stretches that hold changes are
// written.
[[nodiscard]] Status replay_journal(FileSystem& fs, const Journal& journal,
                                    const Checkpoint& checkpoint, unsigned threads);

// Ok where every file of the checkpoint can be patched in place: a regular file, writable, with no
// further hard link through which another checkpoint would change too.
[[nodiscard]] Status check_patchable(FileSystem& fs, const Checkpoint& checkpoint);

}  // namespace driftless
