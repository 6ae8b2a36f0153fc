// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "collectives/peer/peer_options.h"

namespace driftless {
namespace peer {
namespace {

using namespace road_key;
#define DRIFTLESS_FIELD(field) DRIFTLESS_ROAD_FIELD(PeerOptions, field)

constexpr setting::Choice<PeerCarrier> kCarriers[] = {{"auto", PeerCarrier::kAuto},
                                                      {"shm", PeerCarrier::kShm},
                                                      {"tcp", PeerCarrier::kTcp},
                                                      {"nixl", PeerCarrier::kNixl}};

constexpr std::array kKeys = {
    poll_first<DRIFTLESS_FIELD(poll_first)>(),
    poll_longest<DRIFTLESS_FIELD(poll_longest)>(),
    patience<DRIFTLESS_FIELD(patience)>(),
    ring_size<DRIFTLESS_FIELD(ring_bytes)>(),
    ring_versions<DRIFTLESS_FIELD(ring_versions)>(),
    road_key::hub_address<DRIFTLESS_FIELD(hub.address)>(),
    road_key::hub_token_file<DRIFTLESS_FIELD(hub.token_file)>(),
    Rows::key<setting::OneOf<kCarriers>, DRIFTLESS_FIELD(carrier)>(
        "road.peer.carrier", "auto, shm, tcp or nixl",
        "How bytes travel. auto: by shared memory on one host; else by NIXL, if both ends have it "
        "and a fast network; else by TCP"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(library)>(
        "road.peer.library", setting::kPath,
        "NIXL's libnixl_capi.so. Empty: where the loader and PyPI's nixl-cu13 have it"),
    Rows::key<setting::Size<64 * setting::kKiB, 16 * setting::kTiB>, DRIFTLESS_FIELD(read_bytes)>(
        "road.peer.read_memory",
        "tcp, nixl: memory that a receiver keeps for later reads. nixl: the memory of abandoned "
        "reads counts, too; when it is full, new reads are refused"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(address)>(
        "road.peer.address", "host:port",
        "Each trainer rank serves its parts there. Empty: on the address by which it reaches the "
        "hub, on any port"),
    Rows::key<setting::Text, DRIFTLESS_FIELD(fallback)>(
        "road.peer.fallback", "shared_fs or object_store",
        "The road, with its own settings, that carries versions once peer cannot. Empty: such a "
        "failure is an error"),
    Rows::key<setting::Count<1, 4096>, DRIFTLESS_FIELD(readers)>(
        "road.peer.readers", "Readers that one trainer rank, or one rollout, serves at once"),
    Rows::key<setting::Size<0, 16 * setting::kTiB>, DRIFTLESS_FIELD(keep_bytes)>(
        "road.peer.keep",
        "tcp: memory in which a rollout keeps what it serves to other rollouts. 0: it serves "
        "nothing, and reads from trainer ranks alone"),
    Rows::key<setting::Duration, DRIFTLESS_FIELD(late)>(
        "road.peer.late",
        "A rollout that does not send requested data for this long is skipped for twice that time, "
        "and for twice as long each further time; the trainer rank sends the data"),
    Rows::key<setting::Duration, DRIFTLESS_FIELD(stall)>(
        "road.peer.stall", "A reader or server that moves no bytes for this long is dropped"),
    Rows::key<setting::Duration, DRIFTLESS_FIELD(farewell)>(
        "road.peer.farewell", "How long a trainer that ends still serves connected rollouts"),
};
#undef DRIFTLESS_FIELD

Status check(const RoadOptions& options, const RoadUse& use) {
  return use.chosen ? hub::check_token_file(options_in<PeerOptions>(options).hub) : Status();
}

std::string fallback(const RoadOptions& options) {
  return options_in<PeerOptions>(options).fallback;
}

}  // namespace
}  // namespace peer

constinit const RoadKind kPeerKind{.name = "peer",
                                   .defaults = [] { return RoadOptions(PeerOptions()); },
                                   .keys = peer::kKeys,
                                   .check = peer::check,
                                   .fallback = peer::fallback,
                                   .fallback_key = "road.peer.fallback",
                                   .fallback_label = "[P2P]"};

}  // namespace driftless
