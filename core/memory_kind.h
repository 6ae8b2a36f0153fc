// SPDX-License-Identifier: Apache-2.0
// Which memory bytes lie in.
#pragma once

namespace driftless {

// kDevice: of a GPU; the processor must not follow a pointer into it.
enum class MemoryKind : unsigned char { kHost, kDevice };

}  // namespace driftless
