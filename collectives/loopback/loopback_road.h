// loopback: a road inside one process. Publisher ranks and receivers are threads that share a hub.
// The reference for what a road must do, and the road of tests and measurements.
#pragma once

#include <cstdint>
#include <memory>

#include "collectives/group.h"
#include "collectives/road.h"

namespace driftless {

struct LoopbackOptions {
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;  // of all steps held, of each rank
  unsigned ring_versions = 32;                        // steps held at most
  std::chrono::milliseconds patience{60'000};         // with a silent receiver
};

// What both sides share. Safe to use from any thread; outlives roads and groups made from it.
class LoopbackHub {
 public:
  LoopbackHub(const LoopbackOptions& options, unsigned ranks);
  ~LoopbackHub();
  [[nodiscard]] std::unique_ptr<SendRoad> sender(unsigned rank);
  [[nodiscard]] std::unique_ptr<ReceiveRoad> receiver();
  [[nodiscard]] std::unique_ptr<Group> group(unsigned rank);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace driftless
