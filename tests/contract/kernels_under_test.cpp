// SPDX-License-Identifier: Apache-2.0
#include "support/kernels_under_test.h"

namespace driftless::testing {

std::vector<HostKernels> kernels_under_test() {
  return {all_host_kernels().begin(), all_host_kernels().end()};
}

std::vector<Quantizer> quantizers_under_test() {
  return {all_quantizers().begin(), all_quantizers().end()};
}

}  // namespace driftless::testing
