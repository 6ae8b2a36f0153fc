// SPDX-License-Identifier: Apache-2.0
// BatchMemory: host memory for the tensors of a batch, used again for the next batch. It is not
// zeroed: fresh memory for each tensor would cost page faults, and a pass by one thread that clears
// it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace driftless {

// One thread at a time.
class BatchMemory {
 public:
  static constexpr std::uint64_t kAlignment = 64;
  // Room for alignment: more than a batch of many tensors needs.
  static constexpr std::uint64_t kSlack = std::uint64_t{1} << 20;

  // Allocates chunks of at least so many bytes.
  explicit BatchMemory(std::uint64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // The content is undefined. Valid until reset().
  [[nodiscard]] std::byte* take(std::uint64_t bytes) {
    if (chunks_.empty() || chunks_.back().bytes - used_ < bytes) {
      const std::uint64_t size = std::max(bytes, chunk_bytes_);
      chunks_.push_back({std::make_unique_for_overwrite<std::byte[]>(size), size});
      used_ = 0;
    }
    std::byte* const at = chunks_.back().memory.get() + used_;
    used_ +=
        std::min((bytes + kAlignment - 1) / kAlignment * kAlignment, chunks_.back().bytes - used_);
    return at;
  }
  // Frees everything that take() returned for other use, and keeps only the largest chunk.
  void reset() {
    if (chunks_.size() > 1) {
      std::ranges::swap(*std::ranges::max_element(chunks_, {}, &Chunk::bytes), chunks_.front());
      chunks_.resize(1);
    }
    used_ = 0;
  }

 private:
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t bytes = 0;
  };

  const std::uint64_t chunk_bytes_;
  std::vector<Chunk> chunks_;  // only the last chunk has room
  std::uint64_t used_ = 0;     // bytes of the last chunk
};

}  // namespace driftless
