// SPDX-License-Identifier: Apache-2.0
// Compiled with the include path of formats: it sees core and itself.
#include "core/delta_view.h"
#include "formats/encoding.h"

int main() { return 0; }
