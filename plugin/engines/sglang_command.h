// SPDX-License-Identifier: Apache-2.0
// A command as SGLang's /update_weights_from_tensor takes it: base64 of what its unpickler reads as
// [("driftless.command", a uint8 tensor of the JSON's bytes)]. Internal to agent/.
#pragma once

#include <string>

#include "formats/strict_json.h"

namespace driftless {

[[nodiscard]] std::string sglang_command(const Json& command);

}  // namespace driftless
