// SPDX-License-Identifier: Apache-2.0
// Fabric: the memory that parts of the nccl road lie in, and the communicators that carry them. The
// seam between the road and CUDA with NCCL: the road's own logic (who is in the group, order,
// acknowledgements, faults) is written against this, so that it runs where there is no GPU.
//
// The product's is made by make_nccl_fabric() (nccl_road.h); tests have one of threads.
#pragma once

#include "collectives/road.h"

namespace driftless::nccl {

// Bytes that `owner` keeps.
struct Block {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::uint64_t size = 0;
};

// One publisher rank (rank 0) and receivers. Nothing here waits: poll() tells how far it is. The
// destructor aborts what is under way, so a peer that does not come costs nothing. One thread at a
// time.
class Communicator {
 public:
  virtual ~Communicator() = default;
  // True once it is connected and what was started has ended; an error: the communicator is lost.
  [[nodiscard]] virtual Result<bool> poll() = 0;
  // Rank 0's bytes to all the others', piece by piece; sizes agree on all ranks. Only after poll()
  // said true. The memory stays until poll() says true again, or the communicator is gone.
  [[nodiscard]] virtual Status broadcast(std::span<const Block> pieces) = 0;
};

// Used from any thread.
class Fabric {
 public:
  virtual ~Fabric() = default;
  [[nodiscard]] virtual MemoryKind memory() const = 0;
  // kNoSpace if there is no room.
  [[nodiscard]] virtual Result<Block> allocate(std::uint64_t size) = 0;
  // Memory of the host that copies to and from memory() are fast with.
  [[nodiscard]] virtual Result<Block> allocate_host(std::uint64_t size) = 0;
  // Between any two of memory() and the host. Returns once it is done.
  [[nodiscard]] virtual Status copy(std::byte* to, const std::byte* from, std::uint64_t size) = 0;
  [[nodiscard]] virtual Status zero(std::byte* at, std::uint64_t size) = 0;
  // Of stretches of memory().
  [[nodiscard]] virtual Result<std::vector<Hash128>> hash(
      std::span<const std::span<const std::byte>> stretches) = 0;

  // The name under which the ranks of a new communicator meet; made by its rank 0.
  [[nodiscard]] virtual Result<std::string> new_meeting() = 0;
  // Starts to connect. 0 <= rank < size.
  [[nodiscard]] virtual Result<std::unique_ptr<Communicator>> connect(std::string_view meeting,
                                                                      unsigned rank,
                                                                      unsigned size) = 0;
};

}  // namespace driftless::nccl
