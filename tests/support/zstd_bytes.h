// SPDX-License-Identifier: Apache-2.0
// A whole zstd frame at once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "formats/zstd_stream.h"

namespace driftless {

inline Result<std::vector<std::byte>> zstd_compress(std::span<const std::byte> bytes) {
  std::vector<std::byte> frame;
  const auto append = [&frame](std::span<const std::byte> piece) {
    frame.insert(frame.end(), piece.begin(), piece.end());
    return Status();
  };
  DRIFTLESS_ASSIGN_OR_RETURN(ZstdWriter writer, ZstdWriter::create(bytes.size(), 0, append));
  DRIFTLESS_RETURN_IF_ERROR(writer.write(bytes));
  DRIFTLESS_RETURN_IF_ERROR(writer.finish());
  return frame;
}

}  // namespace driftless
