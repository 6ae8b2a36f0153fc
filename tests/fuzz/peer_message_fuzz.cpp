// SPDX-License-Identifier: Apache-2.0
// Input: a message of the peer road as it comes from another process, by each of its five readers.
// What is let through must be written the same way again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "collectives/peer/message.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto check = [bytes](const auto& message) {
    if (message.ok() && peer::to_bytes(*message) != bytes) std::abort();
  };
  check(peer::parse_request(bytes));
  check(peer::parse_reply(bytes));
  check(peer::parse_want(bytes));
  check(peer::parse_answer(bytes));
  check(peer::parse_place(bytes));
  return 0;
}
