// SPDX-License-Identifier: Apache-2.0
// NixlPlaces: the serving side of the carrier `nixl`. A part's memory is registered when the first
// reader asks for the part, and stays registered, also for later parts, until it is freed.
//
// NIXL does not authenticate: readers get addresses over their authenticated connections. A late
// reader, which reads after the memory was reused for another part, gets wrong bytes, which the
// hashes refuse, and does no harm here (NixlAgent::expose()).
#pragma once

#include "collectives/peer/message.h"
#include "collectives/peer/nixl_agent.h"
#include "collectives/peer/part_memory.h"
#include "collectives/peer/peer_options.h"

namespace driftless::peer {

class NixlPlaces {
 public:
  explicit NixlPlaces(std::shared_ptr<NixlAgent> agent) : agent_(std::move(agent)) {}

  // `known`: the Place::state that the reader has loaded; 0: none. Thread-safe.
  [[nodiscard]] Result<Place> place_of(const StoredPart& part, std::uint64_t known);

 private:
  const std::shared_ptr<NixlAgent> agent_;
  std::mutex mutex_;
};

// Null if this rank does not offer NIXL: the options exclude it; or with `auto` there is no fast
// network, or no library. kUnsupported if the options require `nixl` and it is missing.
[[nodiscard]] Result<std::unique_ptr<NixlPlaces>> make_nixl_places(const PeerOptions& options,
                                                                   NixlOffer* offer);

}  // namespace driftless::peer
