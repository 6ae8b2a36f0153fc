// SPDX-License-Identifier: Apache-2.0
// Tracker: records which receivers keep which chunks of the parts, and assigns to each reader the
// sources of its chunks. Readers of the same bytes get different chunks from the trainer rank, and
// the other chunks from each other, so that each byte leaves its trainer rank about once. It
// belongs to the leader's Board, whose mutex protects it.
//
// A receiver asks repeatedly (Ask::kSources): it reports the chunks that it keeps, and gets
// assigned some of those that it still wants. A chunk that another reader is fetching from the
// trainer rank is not assigned until that reader has it, or PeerOptions::late has passed. A late
// source gets no assignments for twice that time, and for twice as long again each further time. A
// source that sent damaged bytes never gets assignments again.
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

  // The answer to a kSources request of receiver `reader`, a peer number of the hub. An answer
  // without sources means that other readers are fetching what it wants, and it must ask again.
  // Considers at most kMaxWanted chunks, beginning at an arbitrary one. `publication_bytes`: the
  // size of all parts of request.id; limits what is recorded about it. kInvalidArgument: the
  // request contradicts itself or an earlier one. kNoSpace: more parts than the publication can
  // have.
  [[nodiscard]] Result<std::vector<Source>> assign(std::uint64_t reader, const Request& request,
                                                   std::uint64_t publication_bytes);
  // Removes a receiver that is no longer connected.
  void remove(std::uint64_t receiver);
  void keep_only(const std::vector<PublicationId>& ids);

 private:
  struct Claim {  // a reader that fetches from the trainer rank
    std::uint64_t reader = 0;
    Clock::time_point until;
  };
  struct Part {
    std::uint64_t size_bytes = 0;
    std::map<std::uint64_t, std::vector<bool>> kept;  // by receiver: a flag for each chunk
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
    std::uint64_t given_bytes = 0;  // assigned by this answer
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
