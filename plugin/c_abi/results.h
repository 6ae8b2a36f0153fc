// SPDX-License-Identifier: Apache-2.0
// What the library found out, as the structs of driftless.h.
#pragma once

#include <optional>
#include <string>

#include "plugin/c_abi/abi_receiver.h"
#include "plugin/c_abi/driftless.h"

namespace driftless::c_abi {

// 32 digits and NUL.
void put_hex(const std::string& digits, char* out);
[[nodiscard]] driftless_report report_of(const UpdateReport& report);
// `reached` by who holds `state`.
[[nodiscard]] driftless_end end_of(const std::optional<EndOfRun>& end, const TargetState& state);
[[nodiscard]] driftless_metrics metrics_of(const AbiView& view);
[[nodiscard]] driftless_state state_of(const AbiView& view);

}  // namespace driftless::c_abi
