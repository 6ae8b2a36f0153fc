// SPDX-License-Identifier: Apache-2.0
// PartStore: the parts of one publication on one publisher rank, in a fabric's memory, while they
// are written and until they have been sent.
//
// create() and finish() by one thread at a time; the files by any, and they may outlive the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/nccl/fabric.h"
#include "collectives/road.h"

namespace driftless::nccl {

class PartStore {
 public:
  // All parts together have at most `most_bytes`; more is kNoSpace.
  PartStore(std::shared_ptr<Fabric> fabric, unsigned rank, std::uint64_t most_bytes);

  [[nodiscard]] Result<std::unique_ptr<File>> create(const std::string& name);
  // The parts' bytes and receipts, in the order of their creation. kInvalidArgument where one is
  // open or not synced.
  struct Finished {
    std::vector<Block> blocks;
    std::vector<PartReceipt> receipts;
  };
  [[nodiscard]] Result<Finished> finish();

  struct Part;
  struct Room;

 private:
  std::shared_ptr<Fabric> fabric_;
  unsigned rank_;
  std::shared_ptr<Room> room_;
  std::vector<std::shared_ptr<Part>> parts_;
};

}  // namespace driftless::nccl
