// SPDX-License-Identifier: Apache-2.0
// A directory that slime, miles or TRL writes, as a road: version directories without a run.json
// and without manifests (hf_delta, full checkpoints, flush files), or TRL's anchors and deltas.
//
// What they do not say is worked out here, from a copy of the weights that follows them: the run
// (named after its base), the digests before and after each version, and of each tensor. So a
// receiver proves what it holds as on any road. The parts are their files as they are; TRL's deltas
// become flush files.
//
// Checked: all that open_version() and VersionSource::open() check; the checksum of every tensor
// that a delta changes, after it; that versions follow each other. A version that is incomplete is
// waited for; one that is damaged for as long as the caller's deadline, and at most kSettleWait.
// If the directory was begun anew (a number that was followed is another version now), every call
// ends with kWrongRun. The run is named after its base alone, so a receiver that holds a version
// already is compared, by its digest, with what the files up to that version make of the base.
//
// Memory: the weights once, and the parts of the last few versions (of a whole one alone). Nothing
// is written into the directory. There is one receiver for each road; it starts from the base.
#pragma once

#include "collectives/shared_fs/shared_fs_road.h"

namespace driftless {

// `options.foreign_base` is version 0: the checkpoint that the trainer and the engines start from.
// Reads all of it. `fs` outlives the road.
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_foreign_receiver(
    FileSystem& fs, const SharedFsOptions& options, unsigned threads);

}  // namespace driftless
