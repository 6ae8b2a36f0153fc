// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "plugin/job/config.h"

// What parses must print settings that are read again to the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = driftless::parse_config(text, "fuzz", {});
  if (!config.ok()) return 0;
  const auto settings = driftless::effective_settings(*config);
  std::vector<std::string> overrides;
  for (const auto& [key, value] : settings) overrides.push_back(key + "=" + value);
  const auto again = driftless::parse_config("mode: delta\n", "fuzz", overrides);
  if (!again.ok() || driftless::effective_settings(*again) != settings) std::abort();
  return 0;
}
