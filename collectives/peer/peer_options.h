// SPDX-License-Identifier: Apache-2.0
// The settings of the peer road, without sockets, so that a configuration can name them even if the
// road is not built.
#pragma once

#include "collectives/hub/hub.h"
#include "collectives/road_kind.h"

namespace driftless {

// How the bytes of a part reach a receiver.
enum class PeerCarrier : unsigned char {
  // Shared memory if both processes are on one host; otherwise NIXL if both have it and a fast
  // network; otherwise TCP.
  kAuto,
  kShm,
  kTcp,
  kNixl,
};

struct PeerOptions {
  HubOptions hub;
  // The address at which this process serves its parts over TCP, host:port. Empty: the address by
  // which it reaches the hub, with a port chosen by the system.
  std::string address = {};
  PeerCarrier carrier = PeerCarrier::kAuto;
  std::string library = {};  // NIXL's libnixl_capi.so; empty: at its usual places
  // Limit for the memory that a receiver keeps for further reads by TCP and NIXL, including that of
  // abandoned NIXL reads that have not ended.
  std::uint64_t read_bytes = std::uint64_t{1} << 30;
  // The name of the fallback road (fallback/fallback_road.h); empty: none.
  std::string fallback = {};
  // Limit for the versions that each trainer rank holds, in addition to the newest anchor and the
  // version that it writes.
  std::uint64_t ring_bytes = std::uint64_t{1} << 30;
  unsigned ring_versions = 64;
  unsigned readers = 64;  // that a trainer rank or a receiver serves at once
  // Limit for the chunks that a receiver keeps from its TCP reads, to serve them to other
  // receivers. 0: it keeps none, and reads only from trainer ranks.
  std::uint64_t keep_bytes = std::uint64_t{1} << 30;
  // A receiver that does not send assigned bytes to another one within this time, or does not read
  // them for others from the trainer rank, is late.
  std::chrono::milliseconds late{5'000};
  // A reader that takes no byte, or a trainer rank that sends none, for this time is given up.
  std::chrono::milliseconds stall{20'000};
  // How long an ending trainer waits for connected receivers.
  std::chrono::milliseconds farewell{30'000};
  std::chrono::milliseconds poll_first{1};
  std::chrono::milliseconds poll_longest{50};
  std::chrono::milliseconds patience{600'000};  // for a receiver that sends no reports
  std::uint64_t start = 0;                      // RoadPlace::start
};
extern const RoadKind kPeerKind;
extern const RoadOpener kPeerOpener;  // of the library driftless_peer

}  // namespace driftless
