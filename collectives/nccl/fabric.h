// SPDX-License-Identifier: Apache-2.0
// Fabric: the memory that holds parts of the nccl road, and the communicators that carry them. It
// is the interface between the road and CUDA with NCCL: the road's logic (group, order,
// acknowledgements, faults) uses only this, so that it also runs without a GPU.
//
// make_nccl_fabric() (nccl_road.h) makes the real one; tests have one that uses threads.
#pragma once

#include "collectives/road.h"

namespace driftless::nccl {

// Bytes that `owner` keeps alive.
struct Block {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::uint64_t size = 0;
};

// A communicator of one publisher rank (rank 0) and receivers. No call waits: poll() returns the
// progress. The destructor aborts unfinished work, and may wait for a fraction of a second. One
// thread at a time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // True once it is connected and the started work is done. An error: the communicator is lost.
  [[nodiscard]] virtual Result<bool> poll() = 0;
  // Sends rank 0's bytes to all others, piece by piece; sizes must agree on all ranks. Call it only
  // after poll() returned true. The memory must stay until poll() returns true again, or the
  // communicator is destroyed.
  [[nodiscard]] virtual Status broadcast(std::span<const Block> pieces) = 0;
};

// Thread-safe.
class Fabric {
 public:
  virtual ~Fabric() = default;
  [[nodiscard]] virtual MemoryKind memory() const = 0;
  // kNoSpace if there is no room.
  [[nodiscard]] virtual Result<Block> allocate(std::uint64_t size) = 0;
  // Allocates host memory with fast copies to and from memory().
  [[nodiscard]] virtual Result<Block> allocate_host(std::uint64_t size) = 0;
  // Copies between memory() and the host in any direction. Returns once it is done.
  [[nodiscard]] virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t size) = 0;
  [[nodiscard]] virtual Status zero(std::byte* at, std::uint64_t size) = 0;
  // The hashes of stretches of memory().
  [[nodiscard]] virtual Result<std::vector<Hash128>> hash(
      std::span<const std::span<const std::byte>> stretches) = 0;

  // The name by which the ranks of a new communicator find each other; rank 0 makes it.
  [[nodiscard]] virtual Result<std::string> new_meeting() = 0;
  // Starts to connect; 0 <= rank < size.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> connect(std::string_view meeting,
                                                                      unsigned rank,
                                                                      unsigned size) = 0;
};

}  // namespace driftless::nccl
