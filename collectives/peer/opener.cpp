// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "collectives/hub/port.h"
#include "collectives/hub/tcp/authentication.h"
#include "collectives/hub/tcp/socket.h"
#include "collectives/peer/peer_road.h"

namespace driftless {
namespace peer {
namespace {

constexpr const char* kService = "peer";

// OpenRoad::job: the first 16 bytes of an HMAC with the token, over a text that no other proof has.
std::string job_of(const std::string& token_file) {
  const Result<std::string> token = hub::read_token(token_file);
  if (!token.ok()) return {};
  const Result<std::string> proof = hub::prove(*token, "driftless job");
  if (!proof.ok()) return {};
  Hash128 name;
  std::memcpy(&name, proof->data(), sizeof(name));
  return to_hex(name);
}

Result<OpenRoad> open_peer(const RoadOptions& given, const RoadPlace& place) {
  PeerOptions options = options_in<PeerOptions>(given);
  DRIFTLESS_ASSIGN_OR_RETURN(options.hub, hub::resolve(options.hub, place.leader_host));
  options.start = place.start;
  const auto port = place.port != nullptr ? place.port : hub::make_tcp_port(options.hub);
  // A process serves at the address by which it reaches the leader. The address is determined when
  // the sender or the receiver is made.
  auto road = std::make_shared<Road>(
      Road{.options = options,
           .meeting = {.hub = [port] { return port->serve(kService); },
                       .connector = [port] { return port->connector(kService); },
                       .leader = options.hub.address,
                       .reached_by = {}},
           .rank = place.rank,
           .ranks = place.trainers});
  OpenRoad open;
  open.sender = [road]() -> Result<std::unique_ptr<SendRoad>> {
    DRIFTLESS_ASSIGN_OR_RETURN(road->meeting.reached_by,
                               hub::local_host_towards(road->options.hub.address));
    return make_sender(road);
  };
  open.receiver = [road] {
    // Without an address it serves nothing to other rollouts.
    const Result<std::string> host = hub::local_host_towards(road->options.hub.address);
    if (host.ok()) road->meeting.reached_by = *host;
    return make_receiver(road);
  };
  open.job = job_of(options.hub.token_file);
  open.publish_end = [road](std::string_view text) { return publish_end(*road, text); };
  open.fetch_end = [road] { return fetch_end(*road); };
  return open;
}

}  // namespace
}  // namespace peer

constinit const RoadOpener kPeerOpener{.open = peer::open_peer, .examine = peer::examine};

}  // namespace driftless
