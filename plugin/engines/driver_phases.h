// SPDX-License-Identifier: Apache-2.0
// The phases of a driver: one function handles the answer to each call and returns the next call.
// Internal to engines/.
#pragma once

#include "plugin/engines/driver_state.h"

namespace driftless::driving {

// Before anything is staged: open the workers, bring all ranks to one version, and clear what an
// earlier driver left. driver_opening.cpp.
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

// The end of a request: correct the label, clear the cache, and resume the engine or leave it as it
// is. driver_resume.cpp.
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
