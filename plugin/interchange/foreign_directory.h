// SPDX-License-Identifier: Apache-2.0
// A directory written by slime, miles or TRL, presented as a road. It contains version directories
// without a run.json and without manifests (hf_delta, full checkpoints, flush files), or TRL's
// anchors and deltas.
//
// The road keeps a copy of the weights that follows the versions, and computes from it what the
// files do not name: the run (named after its base), the digests before and after each version, and
// each tensor's digest. So a receiver proves what it holds as on any road. The parts are the files
// themselves; TRL's deltas become flush files.
//
// The road checks what open_version() and VersionSource::open() check, the checksum of every tensor
// that a delta changes, after the change, and that the versions follow each other. It waits for an
// incomplete version; a damaged one is final once its files have not changed for 10 s.
// If the directory was begun anew (a version that was followed has been replaced by another of the
// same number), calls for versions end with kWrongRun. The run's id depends on its base alone. So a
// receiver that already holds a version must prove it: its digest must be that of the base plus the
// versions up to that one.
//
// Memory: the weights once, and the parts of the last few versions (only one, if it is a full
// version). Nothing is written into the directory. Each road serves one receiver, which starts from
// the base.
#pragma once

#include "collectives/shared_fs/shared_fs_road.h"

namespace driftless {

// `options.foreign_base` is version 0: the checkpoint from which the trainer and the engines start.
// Reads all of it. `fs` outlives the road.
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_foreign_receiver(
    FileSystem& fs, const SharedFsOptions& options, unsigned threads);

}  // namespace driftless
