// SPDX-License-Identifier: Apache-2.0
// The encodings and their names. A new encoding needs a row here and its own files; the others do
// not change.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/status.h"

namespace driftless {

// The numbers are part of the wire format: never reorder, only append.
enum class Encoding : std::uint8_t {
  kIndices = 0,     // absolute positions (int32, int64 if a tensor needs it) and values: fast roads
  kDeltas = 1,      // gaps between positions (uint16, wider per tensor if needed) and values
  kDeltasZstd = 2,  // the same under zstd: slow shared file systems
  kXor = 3,         // new ^ old of whole tensors under zstd: small, applied exactly once
  kOverwrite = 4,   // byte positions and values under zstd: idempotent; up to 4 GiB
  kCompact = 5,  // coded relative to the old values, in tiles: slow roads (docs/formats/compact.md)
  kFull = 6,     // whole tensors
};

struct EncodingInfo {
  Encoding encoding;
  std::string_view name;  // "deltas_zstd"
  bool positional;        // travels in buckets (frames, flush files)
  bool interchange;       // travels as hf_delta payloads
};

[[nodiscard]] std::span<const EncodingInfo> all_encodings();
[[nodiscard]] const EncodingInfo& info(Encoding encoding);
// kInvalidArgument, naming the known encodings, for an unknown one.
[[nodiscard]] Result<Encoding> parse_encoding(std::string_view name);
[[nodiscard]] Result<Encoding> encoding_from_wire(std::uint8_t number);

}  // namespace driftless
