// SPDX-License-Identifier: Apache-2.0
// Reads all bytes of a part through a PartReader, which reads ranges.
#pragma once

#include <utility>
#include <vector>

#include "collectives/shared_fs/part_container.h"

namespace driftless::testing {

inline Result<MappedFile> read_whole_part(const PartReader& reader, const std::string& directory,
                                          const PartReceipt& part, const Deadline& deadline) {
  const ByteRange whole{0, part.size_bytes};
  DRIFTLESS_ASSIGN_OR_RETURN(std::vector<MappedFile> bytes,
                             reader(directory, part, {&whole, 1}, deadline));
  return std::move(bytes.front());
}

}  // namespace driftless::testing
