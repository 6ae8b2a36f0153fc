// SPDX-License-Identifier: Apache-2.0
// The settings of the peer road, without sockets: a configuration names them also where the road is
// not built.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road_kind.h"

namespace driftless {

// How the bytes of a part reach a receiver.
enum class PeerCarrier : unsigned char {
  // Shared memory if both processes are on one host; else NIXL if both have it and a fast network;
  // else TCP.
  kAuto,
  kShm,
  kTcp,
  kNixl,
};

struct PeerOptions {
  HubOptions hub;
  // Where this process serves its parts over TCP: host:port. Empty: the address by which it reaches
  // the hub, with a port that the system chooses.
  std::string address = {};
  PeerCarrier carrier = PeerCarrier::kAuto;
  std::string library = {};  // NIXL's libnixl_capi.so; empty: where it is usually found
  // Memory that a receiver keeps for further reads by TCP and NIXL, and that of reads by NIXL which
  // were given up and have not ended.
  std::uint64_t read_bytes = std::uint64_t{1} << 30;
  // The name of the road that takes over if this one fails (fallback/fallback_road.h); empty: none.
  std::string fallback = {};
  // Of the versions that each trainer rank holds, beside the newest anchor and what it writes.
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;
  unsigned ring_versions = 64;
  unsigned readers = 64;  // that one trainer rank, or one receiver, serves at once
  // Chunks that a receiver keeps of what it read over TCP, to serve them to other receivers. 0: it
  // keeps none, and reads from trainer ranks alone.
  std::uint64_t keep_bytes = std::uint64_t{1} << 30;
  // What a receiver was to send to another, or to read for others, has to come within that.
  std::chrono::milliseconds late{5'000};
  // A reader that takes no byte, or a trainer rank that sends none, for so long is given up.
  std::chrono::milliseconds stall{20'000};
  // So long a trainer that ends waits for receivers that are connected.
  std::chrono::milliseconds farewell{30'000};
  std::chrono::milliseconds poll_first{1};
  std::chrono::milliseconds poll_longest{50};
  std::chrono::milliseconds patience{600'000};  // with a receiver that does not report
  std::uint64_t start = 0;                      // RoadPlace::start
};
extern const RoadKind kPeerKind;
extern const RoadOpener kPeerOpener;  // of the library driftless_peer

}  // namespace driftless
