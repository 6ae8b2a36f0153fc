// SPDX-License-Identifier: Apache-2.0
#include "plugin/job/on_demand/loaded_library.h"

namespace driftless {

const char* build_text() { return DRIFTLESS_BUILD_TEXT; }

}  // namespace driftless
