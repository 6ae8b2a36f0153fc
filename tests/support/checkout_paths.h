// SPDX-License-Identifier: Apache-2.0
// The paths of this checkout and of its build. They are in a file of their own, because a file that
// names a path is compiled again in every checkout.
#pragma once

namespace driftless::testing {

// The folder tests/ of the sources.
const char* test_data();

// A library that stands for CUDA's driver.
const char* driver_stand_in();

}  // namespace driftless::testing
