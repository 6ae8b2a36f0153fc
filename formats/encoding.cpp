// SPDX-License-Identifier: Apache-2.0
#include "formats/encoding.h"

#include <array>
#include <string>

namespace driftless {
namespace {

constexpr std::array<EncodingInfo, 7> kEncodings{{
    {Encoding::kIndices, "indices", true, false},
    {Encoding::kDeltas, "deltas", true, false},
    {Encoding::kDeltasZstd, "deltas_zstd", true, false},
    {Encoding::kXor, "xor", false, true},
    {Encoding::kOverwrite, "overwrite", false, true},
    {Encoding::kCompact, "compact", false, false},
    {Encoding::kFull, "full", false, false},
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
