// SPDX-License-Identifier: Apache-2.0
// PartBuffer: the bytes of a part in memory, which grow while the part is written.
#pragma once

#include <cstdlib>
#include <mutex>

#include "collectives/road.h"

namespace driftless {

// realloc() moves large blocks by remapping their pages, while a vector would copy them and zero
// the rest first. One thread at a time.
class PartBuffer {
 public:
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_bytes_}; }
  // Gaps before `offset` that were never written become zero. If no memory is left, changes
  // nothing and returns false.
  [[nodiscard]] bool write(std::uint64_t offset, std::span<const std::byte> bytes);
  // Sets the size; new bytes have any value. Fails like write().
  [[nodiscard]] bool resize(std::uint64_t size_bytes);
  [[nodiscard]] std::span<std::byte> writable() { return {data_.get(), size_bytes_}; }
  // Empties the buffer and keeps its memory.
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

// Keeps the memory of parts that are no longer read for the next parts, because touching new pages
// costs more than copying. Thread-safe.
class PartPool : public std::enable_shared_from_this<PartPool> {
 public:
  // Keeps at most `spare_bytes` of unused memory, and frees the longest unused first.
  explicit PartPool(std::uint64_t spare_bytes) : most_bytes_(spare_bytes) {}
  // Returns an empty buffer with spare memory: that given back last or, with `size_bytes`, memory
  // that holds so many bytes and is not much larger. Without spare memory the buffer allocates.
  [[nodiscard]] PartBuffer take(std::optional<std::uint64_t> size_bytes = std::nullopt);
  // Shares a finished part. When the last reader releases it, its memory returns to this pool.
  [[nodiscard]] std::shared_ptr<const PartBuffer> share(PartBuffer buffer);

 private:
  void put(PartBuffer buffer);

  const std::uint64_t most_bytes_;
  std::mutex mutex_;
  std::vector<PartBuffer> spare_;  // the one given back last is at the end
  std::uint64_t spare_bytes_ = 0;
};

}  // namespace driftless
