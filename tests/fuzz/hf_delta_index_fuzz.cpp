// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "formats/version_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto index = driftless::parse_index(text, 1, "fuzz");
  if (!index.ok()) return 0;
  const auto again = driftless::parse_index(driftless::index_to_json(*index), 1, "fuzz");
  if (!again.ok() || again->weight_map != index->weight_map) std::abort();
  return 0;
}
