// SPDX-License-Identifier: Apache-2.0
// NixlPlaces: the serving side of the carrier `nixl`. Parts are registered when the first reader
// asks for one, and stay registered as long as their memory is used, for whatever part.
//
// NIXL does not authenticate: addresses are given to readers on their authenticated connections.
// A reader may come late, after the memory was used for another part: it gets other bytes, which
// the hashes refuse, and does no harm here (NixlAgent::expose()).
#pragma once

#include "collectives/peer/message.h"
#include "collectives/peer/nixl_agent.h"
#include "collectives/peer/part_memory.h"
#include "collectives/peer/peer_options.h"

namespace driftless::peer {

class NixlPlaces {
 public:
  explicit NixlPlaces(std::shared_ptr<NixlAgent> agent) : agent_(std::move(agent)) {}

  // `known`: Place::state that the reader has loaded; 0: nothing. From any thread.
  [[nodiscard]] Result<Place> place_of(const StoredPart& part, std::uint64_t known);

 private:
  const std::shared_ptr<NixlAgent> agent_;
  std::mutex mutex_;
};

// Null, and no offer, if the options do not want it, or `auto` finds no fast network or no library.
// kUnsupported if `nixl` is wanted and is not there.
[[nodiscard]] Result<std::unique_ptr<NixlPlaces>> make_nixl_places(const PeerOptions& options,
                                                                   NixlOffer* offer);

}  // namespace driftless::peer
