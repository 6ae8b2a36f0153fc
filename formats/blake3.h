// SPDX-License-Identifier: Apache-2.0
// BLAKE3 in its hash mode. Portable: one thread hashes four chunks at a time with the compiler's
// vector types.
//
// One of the implementations behind checksum.h, which other code uses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace driftless {

// One running hash. Used by one thread at a time.
class Blake3 {
 public:
  Blake3();

  void update(std::span<const std::byte> bytes);
  // The hash of all bytes so far; more may follow.
  [[nodiscard]] std::array<std::byte, 32> digest() const;

 private:
  using ChainingValue = std::array<std::uint32_t, 8>;

  void fill_chunk(std::span<const std::byte>& bytes);
  void push_chunk(ChainingValue value);
  [[nodiscard]] std::uint64_t chunk_bytes() const;

  // The chunk being filled. Its last block stays in `block_` until more bytes come, because the
  // last block of all is hashed differently.
  ChainingValue chunk_value_;
  std::array<std::byte, 64> block_{};
  std::size_t block_bytes_ = 0;
  std::uint64_t blocks_done_ = 0;  // of this chunk
  std::uint64_t chunks_done_ = 0;

  // Whole subtrees that wait for their right sibling, largest first: one for each bit of
  // chunks_done_. 2^54 chunks are 2^64 bytes.
  std::array<ChainingValue, 54> stack_{};
  std::size_t stack_size_ = 0;
};

}  // namespace driftless
