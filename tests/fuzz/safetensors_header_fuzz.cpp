// SPDX-License-Identifier: Apache-2.0
// Input: a whole safetensors file. What is accepted must lie inside the file, side by side.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto header =
      driftless::parse_safetensors_header(std::as_bytes(std::span(data, size)), size, "input");
  if (!header.ok()) return 0;
  std::uint64_t expected = header->data_offset;
  for (const driftless::SafetensorsEntry& entry : header->tensors) {
    if (entry.file_offset != expected || entry.spec.name.empty()) std::abort();
    expected += entry.spec.size_bytes;
  }
  if (expected != size) std::abort();
  return 0;
}
