// SPDX-License-Identifier: Apache-2.0
#include "support/checkout_paths.h"

namespace driftless::testing {

const char* test_data() { return DRIFTLESS_TEST_DATA; }
const char* driver_stand_in() { return DRIFTLESS_DRIVER_STAND_IN; }

}  // namespace driftless::testing
