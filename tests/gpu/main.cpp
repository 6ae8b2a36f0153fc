// SPDX-License-Identifier: Apache-2.0
// Without a GPU everything here is skipped, with that reason (77: ctest's word for it).
#include <cstdio>

#include "gpu/device.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!driftless::testing::has_gpu()) {
    std::puts("skipped: this machine has no GPU that CUDA can use");
    return 77;
  }
  return RUN_ALL_TESTS();
}
