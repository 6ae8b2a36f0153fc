// SPDX-License-Identifier: Apache-2.0
// Tracker: which receivers keep which chunks of the parts, and which of them reads what from where.
// Readers of the same bytes get different chunks from the trainer rank, and the others' chunks from
// each other, so that each byte leaves its trainer rank about once. Part of the leader's Board,
// whose mutex protects it.
//
// A receiver asks again and again (Ask::kSources): it reports what it keeps by now, and is assigned
// some of what it still wants. A chunk that another reader was sent to the trainer rank for is not
// assigned until that one has it, or PeerOptions::late has passed. A source that was late is not
// assigned for twice that time, and twice as long each further time; one that sent damaged bytes is
// never assigned again.
#pragma once

#include <map>
#include <set>

#include "collectives/peer/message.h"
#include "collectives/peer/peer_options.h"

namespace driftless::peer {

class Tracker {
 public:
  using Clock = Deadline::Clock;
  static constexpr std::size_t kMaxWanted = 1024;  // chunks

  explicit Tracker(const PeerOptions& options) : late_(options.late), readers_(options.readers) {}

  // The answer to a kSources of receiver `reader`, a number of the hub. No sources: what it wants
  // is on its way to others; it asks again. At most kMaxWanted chunks are looked at, from any of
  // them on. `publication_bytes`: of all parts of request.id, which
  // bounds what is recorded of it. kInvalidArgument: the request contradicts itself. kNoSpace: more
  // parts than the publication can have.
  [[nodiscard]] Result<std::vector<Source>> assign(std::uint64_t reader, const Request& request,
                                                   std::uint64_t publication_bytes);
  // The receiver is not connected any more.
  void remove(std::uint64_t receiver);
  void keep_only(const std::vector<PublicationId>& ids);

 private:
  struct Claim {  // a reader that was sent to the trainer rank
    std::uint64_t reader = 0;
    Clock::time_point until;
  };
  struct Part {
    std::uint64_t size_bytes = 0;
    std::map<std::uint64_t, std::vector<bool>> kept;  // by receiver: of each chunk
    std::map<std::uint64_t, Claim> claims;            // by chunk
  };
  struct Receiver {
    Endpoint endpoint;
    std::set<std::uint64_t> reads_from;  // receivers
    std::set<std::uint64_t> read_by;
    unsigned faults = 0;
    bool damages = false;
    Clock::time_point blocked_until = {};
  };
  using PartKey = std::pair<std::string, std::string>;  // name and hash
  struct Publication {
    std::map<PartKey, Part> parts;
    std::uint64_t bytes = 0;  // of `parts`
  };

  [[nodiscard]] Result<Part*> part_of(const Request& request, std::uint64_t publication_bytes);
  void end_reads(std::uint64_t reader, Receiver& known);
  void take_faults(Part& part, const Exchange& exchange);
  // A receiver that may send chunks of a part.
  struct Holder {
    std::uint64_t number = 0;
    const std::vector<bool>* kept = nullptr;
    std::size_t readers = 0;
    std::uint64_t given_bytes = 0;  // by this answer
    bool busy = false;              // it has as many readers as it may have
  };
  [[nodiscard]] std::vector<Holder> holders_for(std::uint64_t reader, const Part& part) const;
  [[nodiscard]] std::vector<Source> share_out(std::uint64_t reader, Part& part,
                                              std::span<const std::uint64_t> wanted,
                                              std::uint64_t most_bytes);

  const std::chrono::milliseconds late_;
  const unsigned readers_;
  std::map<PublicationId, Publication> publications_;
  std::map<std::uint64_t, Receiver> receivers_;
};

}  // namespace driftless::peer
