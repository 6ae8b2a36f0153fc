// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that a receiver provides for bytes that a road fetches. Roads do not link CUDA,
// so the receiver also provides the copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/status.h"

namespace driftless {

struct DeviceSpace {
  int device = 0;  // its CUDA number
  // One allocation. A road may keep this pointer, and the memory registered, after the call.
  std::shared_ptr<std::byte> allocation;
  std::uint64_t allocation_bytes = 0;
  // The same memory, while it is used for one version. A road keeps this pointer as long as an
  // unfinished read may write there: the receiver uses other memory meanwhile.
  std::shared_ptr<std::byte> memory;
  // Copies bytes from the host to the device. Returns when they are there.
  std::function<Status(std::byte* to_dev, std::span<const std::byte> from)> copy;
};

}  // namespace driftless
