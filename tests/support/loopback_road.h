// SPDX-License-Identifier: Apache-2.0
// loopback: a road inside one process. Publisher ranks and receivers are threads that share a hub.
// It is the reference for the contract of roads, and is used by tests and measurements.
//
// Parts are bytes in memory. A receiver gets the same memory that was written, and keeps it alive.
// The newest anchor is held beside the ring of versions. If the ring is full, the oldest versions
// are dropped.
#pragma once

#include "collectives/group.h"
#include "collectives/road.h"

namespace driftless {

struct LoopbackOptions {
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;  // of all versions held, of each rank
  unsigned ring_versions = 32;                        // versions held at most
  std::chrono::milliseconds patience{60'000};         // with a silent receiver
};

struct LoopbackMedium;
class LoopbackMail;

// What both sides share. Safe to use from any thread; roads and groups made from it may outlive it.
class LoopbackHub {
 public:
  LoopbackHub(const LoopbackOptions& options, unsigned ranks);
  // One for each rank at a time.
  [[nodiscard]] std::unique_ptr<SendRoad> sender(unsigned rank);
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver();
  [[nodiscard]] std::unique_ptr<Group> group(unsigned rank);

 private:
  std::shared_ptr<LoopbackMedium> medium_;
  std::shared_ptr<LoopbackMail> mail_;
};

}  // namespace driftless
