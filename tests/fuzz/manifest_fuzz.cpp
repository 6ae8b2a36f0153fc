// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "formats/manifest.h"

// What parses must print as something that parses to the same.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto manifest = driftless::parse_manifest(text, "fuzz");
  if (!manifest.ok()) return 0;
  const auto again = driftless::parse_manifest(driftless::manifest_to_json(*manifest), "fuzz");
  if (!again.ok() || *again != *manifest) std::abort();
  return 0;
}
