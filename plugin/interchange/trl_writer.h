// SPDX-License-Identifier: Apache-2.0
// Writes TRL's layout beside our own. This road wraps shared_fs and also keeps
// anchors/step_%06d.safetensors and deltas/step_%06d.safetensors, with all the metadata that TRL's
// workers read. Under `encoding: indices` the entries are named `.indices` and `.values`, with
// `changed_params`; under `deltas` `.idx` and `.val`, with `encoding: gap_delta`.
//
// A step is made under a hidden name from the files of its publication, before that is sealed, and
// renamed afterwards. So a worker never sees a step that our own receivers do not. If a publisher
// dies before the rename, the next one makes the step from the version's directory. Steps are
// removed with their versions. Beside TRL's keys a step has `driftless_...` keys: the run, and the
// digests of all weights before and after the step, which our reader compares.
#pragma once

#include "collectives/shared_fs/shared_fs_road.h"
#include "formats/encoding.h"

namespace driftless {

inline constexpr std::string_view kTrlRunKey = "driftless_run";
inline constexpr std::string_view kTrlBaseDigestKey = "driftless_base_digest";
inline constexpr std::string_view kTrlDigestKey = "driftless_digest";

// The leader's road. `road` publishes into options.dir and must not run after_publish itself,
// because this road runs it. announce() returns kUnsupported if TRL's format cannot hold the
// positions of a tensor.
[[nodiscard]] std::unique_ptr<SendRoad> make_trl_sender(FileSystem& fs,
                                                        const SharedFsOptions& options,
                                                        Encoding encoding,
                                                        std::unique_ptr<SendRoad> road);

}  // namespace driftless
