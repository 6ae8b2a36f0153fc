// SPDX-License-Identifier: Apache-2.0
// Must not compile with the include path of formats: no arrow leads from formats to kernels.
#include "kernels/host_kernels.h"

int main() { return 0; }
