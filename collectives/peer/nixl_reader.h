// SPDX-License-Identifier: Apache-2.0
// NixlReader: the reading side of the carrier `nixl`. Reads into registered memory, which it keeps
// for further reads.
//
// NIXL cannot cancel a read. An abandoned read (because the trainer rank has stopped, for example)
// is quarantined: its memory stays registered and unused until the read has ended. Memory in
// quarantine counts against PeerOptions::read_bytes; once it fills that, new reads are refused.
//
// It also reads into memory of a GPU that the caller provides, if NIXL can register that.
//
// One thread at a time; any thread may use the returned bytes.
#pragma once

#include <functional>
#include <map>

#include "collectives/peer/message.h"
#include "collectives/peer/nixl_agent.h"
#include "collectives/peer/peer_options.h"
#include "collectives/peer/read_memory.h"
#include "core/device_space.h"

namespace driftless::peer {

class NixlReader {
 public:
  [[nodiscard]] static Result<std::unique_ptr<NixlReader>> make(const PeerOptions& options);
  // Keeps the memory of unfinished reads until the process ends.
  ~NixlReader();

  // Asks the trainer rank for the place of the part; the rank then keeps the part there. `known`:
  // as for NixlPlaces::place_of().
  using AskPlace = std::function<Result<Place>(std::uint64_t known)>;

  // Reads `ranges` of the part at the place. kBusy: the quarantine is full. kIo if the rank is
  // gone, or a piece of the read did not end within PeerOptions::stall.
  [[nodiscard]] Result<std::vector<MappedFile>> read(unsigned rank, const std::string& part,
                                                     std::span<const ByteRange> ranges,
                                                     const AskPlace& ask, const Deadline& deadline);
  // The same into memory of a GPU; directly if the network can do that. The last allocation stays
  // registered, and is kept, for the next read.
  [[nodiscard]] Status read_to_device(unsigned rank, const std::string& part,
                                      std::span<const DeviceRange> ranges, const DeviceSpace& space,
                                      const AskPlace& ask, const Deadline& deadline);
  // Whether NIXL can register such memory; tries it once. If not, bytes go through host memory.
  [[nodiscard]] bool takes(const DeviceSpace& space);
  // Call it after the connection to the rank was renewed: drops all knowledge of what the rank
  // serves.
  void connected(unsigned rank);
  // Checks the quarantined reads first.
  [[nodiscard]] std::uint64_t quarantined_bytes();

 private:
  // The loaded description of a trainer rank.
  struct Loaded {
    std::string name;
    std::uint64_t state = 0, removals = 0;
    std::uint64_t known = 0;  // `state`, if it is from this connection
  };
  // The memory of a read, on the host or on a GPU. `registration` is destroyed before the memory.
  struct Memory {
    NixlWhere where;
    std::uint64_t bytes = 0;
    std::shared_ptr<ReadLease> lease;
    std::shared_ptr<std::byte> space;
    std::shared_ptr<const void> registration;
  };
  struct GivenUp {
    NixlRead read;
    std::string name;
    Memory memory;
  };
  struct Piece {  // of the part, and where it belongs
    ByteRange range;
    std::byte* to = nullptr;
  };

  NixlReader(const PeerOptions& options, std::shared_ptr<NixlAgent> agent);
  [[nodiscard]] Status check_quarantine();
  [[nodiscard]] Result<std::uint64_t> find_place(unsigned rank, const AskPlace& ask);
  [[nodiscard]] Status load(Loaded& loaded, const Place& place);
  void forget(Loaded& loaded);
  [[nodiscard]] Status read_pieces(unsigned rank, const std::string& part, std::uint64_t address,
                                   std::span<const Piece> pieces, const Memory& memory,
                                   const AskPlace& ask, const Deadline& deadline);
  [[nodiscard]] Status move(Loaded& from, std::span<const NixlMove> moves, const Memory& memory,
                            const Deadline& deadline);

  const PeerOptions options_;
  const std::shared_ptr<NixlAgent> agent_;
  const std::shared_ptr<ReadMemory> memory_;
  std::map<unsigned, Loaded> loaded_;  // by rank
  std::vector<GivenUp> given_up_;
  // The registered memory of a GPU, and its registration, which is destroyed first.
  std::shared_ptr<std::byte> device_memory_;
  std::shared_ptr<const void> device_registration_;
  bool no_device_ = false;  // NIXL refused to register such memory
};

}  // namespace driftless::peer
