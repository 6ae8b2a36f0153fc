// SPDX-License-Identifier: Apache-2.0
#include "formats/encoding.h"

#include <array>
#include <string>

namespace driftless {
namespace {

constexpr std::array<EncodingInfo, 6> kEncodings{{
    {Encoding::kIndices, "indices", true, false,
     "absolute positions (int32, int64 where a tensor needs it) and values; for fast roads"},
    {Encoding::kDeltas, "deltas", true, false,
     "gaps between positions (uint16, wider per tensor where needed) and values"},
    {Encoding::kDeltasZstd, "deltas_zstd", true, false,
     "deltas under zstd; for slow shared file systems"},
    {Encoding::kXor, "xor", false, true,
     "new ^ old of whole tensors under zstd; smallest, must be applied exactly once"},
    {Encoding::kOverwrite, "overwrite", false, true,
     "byte positions and values under zstd; may be applied again; tensors up to 4 GiB"},
    {Encoding::kFull, "full", false, false, "whole tensors"},
}};

}  // namespace

std::span<const EncodingInfo> all_encodings() { return kEncodings; }

const EncodingInfo& info(Encoding encoding) {
  for (const EncodingInfo& candidate : kEncodings) {
    if (candidate.encoding == encoding) return candidate;
  }
  return kEncodings.back();
}

Result<Encoding> parse_encoding(std::string_view name) {
  std::string known;
  for (const EncodingInfo& candidate : kEncodings) {
    if (candidate.name == name) return candidate.encoding;
    if (!known.empty()) known += ", ";
    known += candidate.name;
  }
  return error(StatusCode::kInvalidArgument, "unknown encoding '", name, "'; use one of ", known);
}

Result<Encoding> encoding_from_wire(std::uint8_t number) {
  for (const EncodingInfo& candidate : kEncodings) {
    if (static_cast<std::uint8_t>(candidate.encoding) == number) return candidate.encoding;
  }
  return error(StatusCode::kCorrupt, "encoding number ", number, " is not known");
}

}  // namespace driftless
