// SPDX-License-Identifier: Apache-2.0
// PartHash: size and hash of a part, learnt while it is being written.
//
// Safe to use from any thread, as File::pwrite() is.
#pragma once

#include <mutex>

#include "collectives/road.h"

namespace driftless {

class PartHash {
 public:
  PartHash();
  ~PartHash();

  // Bytes that were written at `offset`. The caller has seen to it that offset + size does not
  // overflow.
  void wrote(std::uint64_t offset, std::span<const std::byte> bytes);
  // The end of what was written.
  [[nodiscard]] std::uint64_t size_bytes() const;
  // Of all bytes, where they were written once and front to back; otherwise nothing, and the part
  // has to be read back.
  [[nodiscard]] std::optional<Hash128> hash() const;

 private:
  struct Stream;
  mutable std::mutex mutex_;
  std::unique_ptr<Stream> stream_;  // null: not front to back
  std::uint64_t size_bytes_ = 0;
};

// Of bytes that may be many: the deadline is looked at on the way. `what` names them in its error.
[[nodiscard]] Result<Hash128> hash_by(std::span<const std::byte> bytes, const Deadline& deadline,
                                      std::string_view what);

}  // namespace driftless
