// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "formats/run_info.h"

// What parses must print as something that parses and prints the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto run = driftless::parse_run_info(text, "fuzz");
  if (!run.ok()) return 0;
  const std::string printed = driftless::run_info_to_json(*run);
  const auto again = driftless::parse_run_info(printed, "fuzz");
  if (!again.ok() || driftless::run_info_to_json(*again) != printed) std::abort();
  return 0;
}
