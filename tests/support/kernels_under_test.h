// SPDX-License-Identifier: Apache-2.0
// Selects the implementations that the kernels' contract suite compares with reference/. The suite
// is built twice, with one table of functions: contract/ fills it with the host's kernels, gpu/
// with the GPU's.
#pragma once

#include <vector>

#include "kernels/host_kernels.h"
#include "kernels/quantize.h"

namespace driftless::testing {

[[nodiscard]] std::vector<HostKernels> kernels_under_test();
[[nodiscard]] std::vector<Quantizer> quantizers_under_test();

}  // namespace driftless::testing
