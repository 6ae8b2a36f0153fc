// SPDX-License-Identifier: Apache-2.0
// peer: a road on which every trainer rank serves its parts from memory, and receivers read the
// ranges that they need from the rank that has them. No MPI, no communicator, no shared file
// system: processes find each other by the hub.
//
// The leading trainer rank has the Board (board.h): the announcement, the manifests, the endpoints
// of the ranks, reports of receivers. Each rank has a PartServer (part_server.h). Bytes travel by
// shared memory on one host, else by TCP. Receivers that read over TCP serve what they read to each
// other (shared_reader.h, tracker.h). A rank keeps the newest versions within ring_bytes and
// the newest anchor, and beside them what it writes.
//
// Receivers come and go as they like; nobody waits for one, except that a trainer that ends serves
// those that are connected for PeerOptions::farewell.
#pragma once

#include "collectives/peer/peer_options.h"

namespace driftless::peer {

struct Meeting {
  std::function<Result<std::unique_ptr<hub::Hub>>()> hub;
  std::function<Result<hub::Connector>()> connector;
  std::string leader;  // the hub's address, for messages
  // The host part of an address of this process; parts are served there. A receiver without one
  // serves nothing.
  std::string reached_by;
};

class Board;
class Client;

// What a process of the road shares between its sender or receiver and the end of the run.
struct Road {
  PeerOptions options;
  Meeting meeting;
  unsigned rank = 0;
  unsigned ranks = 1;
  std::shared_ptr<Board> board = {};    // of the leader, once its sender is made
  std::shared_ptr<Client> client = {};  // of a receiver, once it is made
};

[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_sender(const std::shared_ptr<Road>& road);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_receiver(const std::shared_ptr<Road>& road);
// A RoadOpener::examine: a row for each carrier.
[[nodiscard]] std::vector<Finding> examine(const RoadOptions& options, std::uint64_t space_bytes,
                                           const Deadline& deadline);
// [leader] The last word of the run; then waits for receivers that are connected to leave.
[[nodiscard]] Status tell_end(const Road& road, std::string_view text);
// [receiver] Nothing before the end, or if the leader does not answer.
[[nodiscard]] Result<std::optional<std::string>> hear_end(const Road& road);

}  // namespace driftless::peer
