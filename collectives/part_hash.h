// SPDX-License-Identifier: Apache-2.0
// PartHash: computes size and hash of a part while it is written.
//
// Thread-safe, as File::pwrite() is.
#pragma once

#include <mutex>

#include "collectives/road.h"

namespace driftless {

class PartHash {
 public:
  PartHash();
  ~PartHash();

  // Reports that `bytes` were written at `offset`. The caller has checked that offset + size does
  // not overflow.
  void wrote(std::uint64_t offset, std::span<const std::byte> bytes);
  // The end of the last byte written.
  [[nodiscard]] std::uint64_t size_bytes() const;
  // The hash of all bytes, if they were written once and front to back. Otherwise empty, and the
  // part must be read back.
  [[nodiscard]] std::optional<Hash128> hash() const;

 private:
  struct Stream;
  mutable std::mutex mutex_;
  std::unique_ptr<Stream> stream_;  // null: not written front to back
  std::uint64_t size_bytes_ = 0;
};

// Hashes a long range, and checks the deadline on the way. The error names `what`.
[[nodiscard]] Result<Hash128> hash_by(std::span<const std::byte> bytes, const Deadline& deadline,
                                      std::string_view what);

}  // namespace driftless
