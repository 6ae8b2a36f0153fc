// SPDX-License-Identifier: Apache-2.0
// Input: a message of the nccl road as it comes from a peer. What is let through must be written
// the same way again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "collectives/nccl/message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const driftless::Result<driftless::nccl::Message> message = driftless::nccl::parse_message(bytes);
  if (message.ok() && driftless::nccl::to_bytes(*message) != bytes) std::abort();
  return 0;
}
