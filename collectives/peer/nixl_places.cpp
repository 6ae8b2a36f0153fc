// SPDX-License-Identifier: Apache-2.0
#include "collectives/peer/nixl_places.h"

namespace driftless::peer {

Result<Place> NixlPlaces::place_of(const StoredPart& part, std::uint64_t known) {
  const std::scoped_lock lock(mutex_);
  if (!part.memory.exposed()) {
    DRIFTLESS_ASSIGN_OR_RETURN(std::shared_ptr<const void> exposure,
                               agent_->expose({part.memory.data(), part.memory.capacity()}));
    part.memory.set_exposure(std::move(exposure));
  }
  DRIFTLESS_ASSIGN_OR_RETURN(NixlDescription now, agent_->describe());
  Place place{.address = reinterpret_cast<std::uintptr_t>(part.memory.data()),
              .state = now.additions + now.removals,
              .removals = now.removals};
  if (place.state != known) place.description = std::move(now.bytes);
  return place;
}

Result<std::unique_ptr<NixlPlaces>> make_nixl_places(const PeerOptions& options, NixlOffer* offer) {
  const bool wanted = options.carrier == PeerCarrier::kNixl;
  const bool fast = has_fast_network();
  *offer = NixlOffer::kNone;
  if (!wanted && (options.carrier != PeerCarrier::kAuto || !fast))
    return std::unique_ptr<NixlPlaces>();
  auto agent = NixlAgent::make(options.library, NixlRole::kServes);
  if (!agent.ok() && wanted) return agent.status();
  if (!agent.ok()) return std::unique_ptr<NixlPlaces>();
  *offer = fast ? NixlOffer::kFast : NixlOffer::kThere;
  return std::make_unique<NixlPlaces>(std::move(*agent));
}

}  // namespace driftless::peer
