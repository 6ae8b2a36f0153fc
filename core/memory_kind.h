// SPDX-License-Identifier: Apache-2.0
// Which memory bytes lie in.
#pragma once

namespace driftless {

// kDevice: memory of a GPU; the processor must not dereference a pointer into it.
enum class MemoryKind : unsigned char { kHost, kDevice };

}  // namespace driftless
