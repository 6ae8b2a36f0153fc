// SPDX-License-Identifier: Apache-2.0
// Board: the state of the road on the leading trainer rank, and the thread that answers all other
// processes: the announcement, the manifests of published versions, where each rank serves its
// parts, which receivers serve parts, the receivers' reports, and the end of the run. Thread-safe.
//
// A version is published when the leader seals it. Nothing waits for a receiver, except the orderly
// end. The leader's last message to every process says that it closes.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "collectives/held_publications.h"
#include "collectives/peer/message.h"
#include "collectives/peer/peer_options.h"
#include "collectives/peer/tracker.h"

namespace driftless::peer {

class Board {
 public:
  // Throws std::system_error if no thread can be created.
  Board(const PeerOptions& options, unsigned ranks, Endpoint endpoint,
        std::unique_ptr<hub::Hub> hub);
  ~Board();

  [[nodiscard]] Status announce(std::string_view run_info);
  [[nodiscard]] Status begin(const PublicationId& id);
  // kIncomplete, naming a rank, if that rank has not flushed.
  [[nodiscard]] Status seal(std::string_view manifest);
  void abort();
  // Records the bytes of a rank's parts. A second call replaces the number.
  [[nodiscard]] Status flushed(unsigned rank, const PublicationId& id, std::uint64_t bytes);
  [[nodiscard]] std::optional<Hash128> published(const PublicationId& id) const;
  // The publications that the ring still holds.
  [[nodiscard]] std::vector<PublicationId> kept() const;
  [[nodiscard]] std::vector<ReceiverReport> receivers();
  [[nodiscard]] std::vector<std::string> left() const;
  void set_end(std::string_view text);
  // Waits until no receiver that has reported is connected.
  [[nodiscard]] Status wait_for_receivers_to_leave(const Deadline& deadline);

 private:
  using Clock = Deadline::Clock;
  struct Peer {
    std::uint64_t number = 0;           // the hub's peer number
    std::optional<std::uint32_t> rank;  // of a trainer; empty for a receiver
    bool greeted = false;
    std::set<std::string> reported;  // receiver ids reported over this link
  };
  struct Known {
    ReceiverReport report;
    Clock::time_point at;
  };
  struct Published {
    std::string manifest;
    std::uint64_t bytes = 0;  // of all parts
  };
  struct Pending {
    PublicationId id;
    std::map<unsigned, std::uint64_t> bytes;  // by rank, for ranks that have flushed
  };

  void run();
  void handle(const hub::HubEvent& event);
  // The functions below need the mutex.
  [[nodiscard]] bool greet(Peer& peer, const Request& request);
  [[nodiscard]] Result<Reply> answer(Peer& peer, const Request& request);
  [[nodiscard]] Result<Reply> answer_rank(unsigned rank, const Request& request);
  [[nodiscard]] Result<Reply> endpoints(const PublicationId& id) const;
  [[nodiscard]] Status take_flushed(unsigned rank, const PublicationId& id, std::uint64_t bytes);
  [[nodiscard]] Status take_report(Peer& peer, const Request& request);
  void leave(Peer& peer, const std::string& id);
  [[nodiscard]] std::string connected() const;  // names of the connected receivers
  void remove_silent();
  void remove(std::uint64_t peer);
  void send(std::uint64_t peer, const Reply& reply) { hub_->send(peer, to_bytes(reply)); }

  const PeerOptions options_;
  const unsigned ranks_;
  const std::unique_ptr<hub::Hub> hub_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint64_t, Peer> peers_;
  std::map<unsigned, Endpoint> endpoints_;  // by rank
  std::optional<std::string> run_info_;
  std::optional<Pending> pending_;
  RetentionRing ring_;
  std::map<PublicationId, Published> published_;  // the publications in the ring
  Tracker tracker_;
  std::map<std::string, Known> receivers_;  // by id
  std::set<std::string> left_;
  std::string end_;
  bool stop_ = false;
  std::thread thread_;  // started last
};

}  // namespace driftless::peer
