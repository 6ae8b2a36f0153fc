// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "plugin/checkpoint/journal.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto state = driftless::parse_state(text, "fuzz");
  if (state.ok() && *driftless::parse_state(driftless::state_to_json(*state), "fuzz") != *state) {
    std::abort();
  }
  return 0;
}
