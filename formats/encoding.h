// SPDX-License-Identifier: Apache-2.0
// The encodings by name. A new one is a row here and files of its own; the others stay as they are.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/status.h"

namespace driftless {

// The numbers are part of the wire format: never reorder, only append.
enum class Encoding : std::uint8_t {
  kIndices = 0,
  kDeltas = 1,
  kDeltasZstd = 2,
  kXor = 3,
  kOverwrite = 4,
  // 5 is kept for `compact`.
  kFull = 6,
};

struct EncodingInfo {
  Encoding encoding;
  std::string_view name;  // "deltas_zstd"
  bool positional;        // travels in buckets (frames, flush files)
  bool interchange;       // travels as hf_delta payloads
  std::string_view help;
};

[[nodiscard]] std::span<const EncodingInfo> all_encodings();
[[nodiscard]] const EncodingInfo& info(Encoding encoding);
// kInvalidArgument naming the known ones.
[[nodiscard]] Result<Encoding> parse_encoding(std::string_view name);
[[nodiscard]] Result<Encoding> encoding_from_wire(std::uint8_t number);

}  // namespace driftless
