// SPDX-License-Identifier: Apache-2.0
// What a driver does with the answer to each call: one function per phase, which returns the next
// call. Internal to engines/.
#pragma once

#include "plugin/engines/driver_state.h"

namespace driftless::driving {

// What the ranks hold before anything is staged: opening, ranks brought to one version, what a
// driver before this one left. driver_opening.cpp.
[[nodiscard]] EngineCall on_first_ask(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_opened(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall open(DriverState& d);
[[nodiscard]] EngineCall on_paused_to_undo(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_brought_together(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_first_clear(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_paused_to_clear(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_first_resume(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_ahead(DriverState& d, const EngineAnswer& answer);

// Staging and the commit. driver_commit.cpp.
[[nodiscard]] EngineCall stage(DriverState& d);
[[nodiscard]] EngineCall on_staging(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_staged(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_paused(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_begun(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_proof(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_undone(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall finish(DriverState& d);
[[nodiscard]] EngineCall on_finished(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_session_left(DriverState& d, const EngineAnswer& answer);

// How a request ends: the label, the cache, and the engine resumed or left as it is.
// driver_resume.cpp.
[[nodiscard]] EngineCall leave(DriverState& d, const Status& problem);
[[nodiscard]] EngineCall label_and_resume(DriverState& d);
[[nodiscard]] Status stale_cache();
[[nodiscard]] EngineCall resume(DriverState& d);
[[nodiscard]] EngineCall on_resumed(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall read_label(DriverState& d);
[[nodiscard]] EngineCall on_label(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall correct_label(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall label_not_proven(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_label_set(DriverState& d, const EngineAnswer& answer);
[[nodiscard]] EngineCall on_label_proof(DriverState& d, const EngineAnswer& answer);

}  // namespace driftless::driving
