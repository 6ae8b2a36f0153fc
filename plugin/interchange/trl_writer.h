// SPDX-License-Identifier: Apache-2.0
// TRL's layout, written beside our own: a road around shared_fs that also keeps
// anchors/step_%06d.safetensors and deltas/step_%06d.safetensors, with all the metadata that TRL's
// workers read. Under `encoding: indices` they are spelled `.indices` and `.values`, with
// `changed_params`; under `deltas` `.idx` and `.val`, with `encoding: gap_delta`.
//
// A step is made from the files of the publication before that is sealed, under a hidden name, and
// renamed once it is: a worker never sees a step that our own receivers do not. What a publisher
// that died did not get to rename, the next one makes from the version's directory. Steps go with
// their versions. Beside TRL's keys are `driftless_...`: the run, and the digests of all weights
// before and after the step, which our reader compares.
#pragma once

#include "collectives/shared_fs/shared_fs_road.h"
#include "formats/encoding.h"

namespace driftless {

inline constexpr std::string_view kTrlRunKey = "driftless_run";
inline constexpr std::string_view kTrlBaseDigestKey = "driftless_base_digest";
inline constexpr std::string_view kTrlDigestKey = "driftless_digest";

// The leader's road. `road` publishes into options.dir, and runs no after_publish: this one does.
// kUnsupported from announce() for a tensor whose positions TRL's format cannot hold.
[[nodiscard]] std::unique_ptr<SendRoad> make_trl_sender(FileSystem& fs,
                                                        const SharedFsOptions& options,
                                                        Encoding encoding,
                                                        std::unique_ptr<SendRoad> road);

}  // namespace driftless
