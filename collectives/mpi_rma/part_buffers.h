// SPDX-License-Identifier: Apache-2.0
// PartBuffers: memory for fetched parts, used again once the last reader of a part is gone: fresh
// memory costs a page fault per 4 KB, which is more than the copy.
//
// take() by one thread at a time; the buffers are given back from any thread, also after the pool
// has gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/status.h"

namespace driftless::mpi_rma {

class PartBuffers {
 public:
  // Keeps at most `idle_bytes` that nobody uses.
  explicit PartBuffers(std::uint64_t idle_bytes);

  struct Buffer {
    std::shared_ptr<void> owner;
    std::span<std::byte> bytes;
  };
  // kNoSpace where there is no memory.
  [[nodiscard]] Result<Buffer> take(std::uint64_t size);

 private:
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t size = 0;
  };
  struct Idle {
    std::mutex mutex;
    std::vector<Block> blocks;  // the last given back last
    std::uint64_t bytes = 0;
    std::uint64_t most = 0;
  };
  // An idle block of at least `size` bytes that is not far larger; empty where there is none.
  [[nodiscard]] Block reuse(std::uint64_t size);
  static void give_back(Idle& idle, Block block);

  std::shared_ptr<Idle> idle_;
};

}  // namespace driftless::mpi_rma
