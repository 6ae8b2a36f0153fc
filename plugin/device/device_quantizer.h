// SPDX-License-Identifier: Apache-2.0
// DeviceQuantizer: computes FP8 or INT4 codes of bfloat16 weights on a GPU
// (PublisherDevice::quantize(), quantize_groups()).
// Private to plugin/device.
//
// Device memory, which is kept: a byte for each weight that is coded at a time, 6 bytes for each of
// its blocks and 80 for each box; pinned memory: the same for blocks and boxes. For INT4: half a
// byte for each weight, and two for each group.
#pragma once

#include "plugin/device/device_memory.h"
#include "plugin/publish/publisher_device.h"

namespace driftless {

// One thread at a time.
class DeviceQuantizer {
 public:
  // PublisherDevice::quantize(), on this stream.
  [[nodiscard]] Status quantize(QuantizeRule rule, std::span<DeviceMatrix> boxes, bool coded,
                                const DeviceStream& stream);
  // PublisherDevice::quantize_groups(), on this stream.
  [[nodiscard]] Status quantize_groups(unsigned group, std::span<DeviceGroups> boxes,
                                       const DeviceStream& stream);
  [[nodiscard]] std::uint64_t device_bytes() const {
    return work_.dev.size() + codes_.size() + largest_dev_.size();
  }

 private:
  DeviceWorkspace work_;
  DeviceBuffer codes_, largest_dev_, largest_;  // the last one is pinned
};

}  // namespace driftless
