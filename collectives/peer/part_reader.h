// SPDX-License-Identifier: Apache-2.0
// PartReader: reads parts from processes that serve them (part_server.h): from trainer ranks, or
// from one receiver. Keeps a connection to each rank. One thread at a time.
#pragma once

#include <map>

#include "collectives/hub/tcp/authentication.h"
#include "collectives/hub/tcp/socket.h"
#include "collectives/peer/message.h"
#include "collectives/peer/nixl_reader.h"
#include "collectives/peer/peer_options.h"

namespace driftless::peer {

class PartReader {
 public:
  // `token`: the result of data_token().
  PartReader(const PeerOptions& options, std::string token)
      : options_(options),
        token_(std::move(token)),
        host_(host_identity()),
        memory_(std::make_shared<ReadMemory>(options.read_bytes)) {}

  // The bytes of `ranges`, in their order; the ranges must lie inside the part. Through shared
  // memory they are the server's own bytes, without a copy. kNotFound if the part does not exist
  // (any more); kIo if the server is gone or sends nothing for PeerOptions::stall.
  [[nodiscard]] Result<std::vector<MappedFile>> read(const Endpoint& from, const PublicationId& id,
                                                     const PartReceipt& part,
                                                     std::span<const ByteRange> ranges,
                                                     const Deadline& deadline);
  // Reads into memory of a GPU by NIXL. False: nothing was read, because another carrier reaches
  // the rank, or NIXL cannot register that memory.
  [[nodiscard]] Result<bool> read_to_device(const Endpoint& from, const PublicationId& id,
                                            const PartReceipt& part,
                                            std::span<const DeviceRange> ranges,
                                            const DeviceSpace& space, const Deadline& deadline);
  // The hash of each chunk, from a trainer rank. The manifest does not prove these hashes: they
  // show which source sent wrong bytes, and the caller proves the whole part.
  [[nodiscard]] Result<std::vector<Hash128>> chunk_hashes(const Endpoint& from,
                                                          const PublicationId& id,
                                                          const PartReceipt& part,
                                                          const Deadline& deadline);
  // The carrier of bytes from `to`; never kAuto. kUnsupported if the configured carrier does not
  // reach `to`.
  [[nodiscard]] Result<PeerCarrier> carrier_to(const Endpoint& to);
  // The carrier of the last bytes; kAuto before the first.
  [[nodiscard]] PeerCarrier carrier() const { return carrier_; }

 private:
  struct Connection {
    Endpoint to;
    PeerCarrier carrier;
    hub::Socket socket;
    hub::FrameWriter writer;
    hub::FrameReader reader;
  };

  template <typename Got, typename Over>
  [[nodiscard]] Result<Got> exchange(const Endpoint& from, const Deadline& deadline,
                                     const Over& over);
  [[nodiscard]] Result<Connection*> connect(const Endpoint& to, const Deadline& deadline);
  [[nodiscard]] Result<std::vector<MappedFile>> read_over(Connection& connection, const Want& want,
                                                          const PartReceipt& part,
                                                          const Deadline& deadline);
  [[nodiscard]] Result<std::vector<Hash128>> hashes_over(Connection& connection, const Want& want,
                                                         const Deadline& deadline);
  // Calls `read` with a function that asks for the part's place.
  template <typename Got, typename Read>
  [[nodiscard]] Result<Got> read_by_nixl(Connection& connection, const Want& want,
                                         const Deadline& deadline, const Read& read);
  [[nodiscard]] Result<std::string> next_message(Connection& connection, std::uint64_t most,
                                                 const Deadline& deadline);
  [[nodiscard]] Result<Answer> ask(Connection& connection, const Want& want,
                                   const Deadline& deadline);

  const PeerOptions options_;
  const std::string token_;
  const std::string host_;
  std::map<unsigned, Connection> connections_;  // by rank
  const std::shared_ptr<ReadMemory> memory_;    // for TCP
  std::unique_ptr<NixlReader> nixl_;            // made when first needed
  bool nixl_looked_for_ = false;
  PeerCarrier carrier_ = PeerCarrier::kAuto;
};

}  // namespace driftless::peer
