// SPDX-License-Identifier: Apache-2.0
// peer: a road on which every trainer rank serves its parts from memory, and receivers read the
// ranges that they need from the rank that has them. It needs no MPI, no communicator and no shared
// file system: processes find each other through the hub.
//
// The leading trainer rank has the Board (board.h): the announcement, the manifests, the endpoints
// of the ranks, the reports of receivers. Each rank has a PartServer (part_server.h). Bytes travel
// through shared memory on one host, otherwise through NIXL or over TCP (PeerCarrier). Receivers
// that read over TCP serve the bytes to each other (shared_reader.h, tracker.h). A rank keeps the
// newest versions within ring_bytes, the newest anchor, and the version that it writes.
//
// Receivers may come and go at any time. Nothing waits for one, except that an ending trainer
// serves connected receivers for PeerOptions::farewell.
#pragma once

#include "collectives/peer/peer_options.h"

namespace driftless::peer {

struct Meeting {
  std::function<Result<std::unique_ptr<hub::Hub>>()> hub;
  std::function<Result<hub::Connector>()> connector;
  std::string leader;  // the hub's address, for messages
  // The host part of an address of this process, at which it serves parts. A receiver without one
  // serves nothing.
  std::string reached_by;
};

class Board;
class Client;

// The road's state in a process, for its sender or receiver and for publish_end() or fetch_end().
struct Road {
  PeerOptions options;
  Meeting meeting;
  unsigned rank = 0;
  unsigned ranks = 1;
  std::shared_ptr<Board> board = {};    // on the leader, once its sender is made
  std::shared_ptr<Client> client = {};  // on a receiver, once it is made
};

[[nodiscard]] Result<std::unique_ptr<SendRoad>> make_sender(const std::shared_ptr<Road>& road);
[[nodiscard]] Result<std::unique_ptr<ReceiveRoad>> make_receiver(const std::shared_ptr<Road>& road);
// Implements RoadOpener::examine: a row for each carrier.
[[nodiscard]] std::vector<Finding> examine(const RoadOptions& options, std::uint64_t space_bytes,
                                           const Deadline& deadline);
// [leader] Reports the end of the run; then waits until connected receivers have left.
[[nodiscard]] Status publish_end(const Road& road, std::string_view text);
// [receiver] Empty before the end, or if the leader does not answer.
[[nodiscard]] Result<std::optional<std::string>> fetch_end(const Road& road);

}  // namespace driftless::peer
