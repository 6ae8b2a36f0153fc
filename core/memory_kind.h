// SPDX-License-Identifier: Apache-2.0
// The kind of memory that holds a range of bytes.
#pragma once

namespace driftless {

// kDevice: memory of a GPU; the processor must not dereference a pointer into it.
enum class MemoryKind : unsigned char { kHost, kDevice };

}  // namespace driftless
