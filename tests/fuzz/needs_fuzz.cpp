// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "formats/receiver_needs.h"
#include "formats/zstd_stream.h"

// What parses must print as something that parses and prints the same. Inputs that begin as a JSON
// object are compressed first: else few would get past the zstd frame.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace driftless;
  constexpr std::size_t kAnySize = std::numeric_limits<std::size_t>::max();
  std::string text(reinterpret_cast<const char*>(data), size);
  if (text.starts_with('{')) {
    auto zstd = ZstdPacker::create();
    std::vector<std::byte> packed;
    if (!zstd.ok() || !zstd->append(std::as_bytes(std::span(data, size)), packed).ok()) return 0;
    text.assign(reinterpret_cast<const char*>(packed.data()), packed.size());
  }
  const auto needs = parse_needs(text, "fuzz");
  if (!needs.ok()) return 0;
  const auto printed = needs_to_text(*needs, kAnySize);
  if (!printed.ok()) std::abort();
  const auto again = parse_needs(*printed, "fuzz");
  if (!again.ok() || again->tensors != needs->tensors || again->encodings != needs->encodings ||
      *needs_to_text(*again, kAnySize) != *printed) {
    std::abort();
  }
  return 0;
}
