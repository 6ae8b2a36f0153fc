// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "plugin/observe/run_status.h"

// What parses must print as something that parses and prints the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto print = [](const driftless::RunStatus& status) {
    return to_json(status).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  const auto status = driftless::parse_run_status(text, "fuzz");
  if (!status.ok()) return 0;
  const std::string printed = print(*status);
  const auto again = driftless::parse_run_status(printed, "fuzz");
  if (!again.ok() || print(*again) != printed) std::abort();
  return 0;
}
