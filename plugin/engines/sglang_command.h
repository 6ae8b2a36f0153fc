// SPDX-License-Identifier: Apache-2.0
// A command in the form that SGLang's /update_weights_from_tensor takes: base64 of a pickle of
// [("driftless.command", a uint8 tensor of the JSON's bytes)]. Internal to engines/.
#pragma once

#include <string>

#include "formats/strict_json.h"

namespace driftless {

[[nodiscard]] std::string sglang_command(const Json& command);

}  // namespace driftless
