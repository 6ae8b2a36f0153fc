// SPDX-License-Identifier: Apache-2.0
// PartBuffer: the bytes of a part in memory, growing while it is written.
#pragma once

#include <cstdlib>
#include <mutex>

#include "collectives/road.h"

namespace driftless {

// realloc() moves large blocks by their pages, where a vector would copy them and fill them with
// zeros first. One thread at a time.
class PartBuffer {
 public:
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_bytes_}; }
  // Bytes before `offset` that were never written are zero. False, and nothing changed, if there
  // is no memory.
  [[nodiscard]] bool write(std::uint64_t offset, std::span<const std::byte> bytes);
  // Of so many bytes, of any value. False, and nothing changed, if there is no memory.
  [[nodiscard]] bool resize(std::uint64_t size_bytes);
  [[nodiscard]] std::span<std::byte> writable() { return {data_.get(), size_bytes_}; }
  // Empty again; the memory stays.
  void clear() { size_bytes_ = 0; }
  [[nodiscard]] std::uint64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  [[nodiscard]] bool reserve(std::uint64_t bytes);

  std::unique_ptr<std::byte, Free> data_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t capacity_bytes_ = 0;
};

// Memory of parts that nobody reads any more, for the next ones: touching new pages costs more than
// the copying. Any thread.
class PartPool : public std::enable_shared_from_this<PartPool> {
 public:
  // Keeps at most `spare_bytes` that nobody uses; the longest unused go first.
  explicit PartPool(std::uint64_t spare_bytes) : most_bytes_(spare_bytes) {}
  // Any memory that there is; for `size_bytes`, that which holds them and is not far larger. Empty.
  [[nodiscard]] PartBuffer take(std::optional<std::uint64_t> size_bytes = std::nullopt);
  // A finished part; its memory comes back here when the last reader has let go of it.
  [[nodiscard]] std::shared_ptr<const PartBuffer> share(PartBuffer buffer);

 private:
  void put(PartBuffer buffer);

  const std::uint64_t most_bytes_;
  std::mutex mutex_;
  std::vector<PartBuffer> spare_;  // the last given back last
  std::uint64_t spare_bytes_ = 0;
};

}  // namespace driftless
