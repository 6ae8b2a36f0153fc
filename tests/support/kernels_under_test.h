// SPDX-License-Identifier: Apache-2.0
// Which implementations the kernels' contract suite holds to reference/. The suite is built twice:
// contract/ gives those of the host, gpu/ the GPU's behind the same table of functions.
#pragma once

#include <vector>

#include "kernels/host_kernels.h"
#include "kernels/quantize.h"

namespace driftless::testing {

[[nodiscard]] std::vector<HostKernels> kernels_under_test();
[[nodiscard]] std::vector<Quantizer> quantizers_under_test();

}  // namespace driftless::testing
