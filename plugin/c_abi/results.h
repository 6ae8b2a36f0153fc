// What the library found out, as the structs of driftless.h.
#pragma once

#include <optional>

#include "plugin/c_abi/driftless.h"
#include "plugin/c_abi/follower.h"

namespace driftless::c_abi {

[[nodiscard]] driftless_report report_of(const UpdateReport& report);
// `reached` by who holds `state`.
[[nodiscard]] driftless_end end_of(const std::optional<EndOfRun>& end, const TargetState& state);
[[nodiscard]] driftless_state state_of(const FollowerView& view);

}  // namespace driftless::c_abi
