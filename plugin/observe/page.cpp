// SPDX-License-Identifier: Apache-2.0
#include "plugin/observe/page.h"

#include "generated/observe/page_source.h"

namespace driftless {

std::string_view status_page() { return {kPageSource, sizeof(kPageSource) - 1}; }

}  // namespace driftless
