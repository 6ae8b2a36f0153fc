#include "module/roads_access.h"

namespace driftless::python {

const char* build_text() { return DRIFTLESS_BUILD_TEXT; }

}  // namespace driftless::python
