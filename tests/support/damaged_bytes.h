// SPDX-License-Identifier: Apache-2.0
// Bytes that differ from those that were sent.
#pragma once

#include <memory>
#include <vector>

#include "core/file_system.h"

namespace driftless::testing {

inline MappedFile with_flipped_bit(const MappedFile& bytes, std::uint64_t at) {
  auto damaged =
      std::make_shared<std::vector<std::byte>>(bytes.bytes().begin(), bytes.bytes().end());
  (*damaged)[at] ^= std::byte{16};
  return MappedFile(bytes.path(), damaged, *damaged);
}

}  // namespace driftless::testing
