// SPDX-License-Identifier: Apache-2.0
// KeptMemory: memory of the process that is kept for the next use.
//
// The first write to new memory costs a page fault for every 4 KiB: filling it takes three to ten
// times as long as filling memory that was used before. The buffers of one version are therefore
// kept for the next version, up to a bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace driftless {

// Any thread. Memory that was taken may outlive this object, and is then freed instead of kept.
class KeptMemory {
 public:
  // Keeps at most this many unused bytes. Memory in use is not bounded here.
  explicit KeptMemory(std::uint64_t most_kept_bytes);
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;
  ~KeptMemory();

  // At least this many bytes, aligned to 4096, with any content. The last copy of the pointer
  // returns them. Null if the system has no memory. Memory below kLeastBytes is never kept.
  [[nodiscard]] std::shared_ptr<std::byte> take(std::uint64_t bytes);

  // The bytes that are kept and unused.
  [[nodiscard]] std::uint64_t kept_bytes() const;

  static constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 10;
  // Memory that this many calls of take() did not use is freed.
  static constexpr std::uint64_t kIdleTakes = 256;

 private:
  class Store;
  std::shared_ptr<Store> store_;
};

// Takes memory from `kept`; if that is null, takes memory that is freed after its use.
[[nodiscard]] std::shared_ptr<std::byte> take_memory(KeptMemory* kept, std::uint64_t bytes);

}  // namespace driftless
