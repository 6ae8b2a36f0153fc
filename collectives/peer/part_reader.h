// SPDX-License-Identifier: Apache-2.0
// PartReader: reads parts from the processes that serve them (part_server.h): trainer ranks, or one
// receiver. Keeps a connection to each rank. One thread at a time.
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
  // `token`: data_token().
  PartReader(const PeerOptions& options, std::string token)
      : options_(options),
        token_(std::move(token)),
        host_(host_identity()),
        memory_(std::make_shared<ReadMemory>(options.read_bytes)) {}

  // The bytes of `ranges`, which lie inside the part, in their order. By shared memory they are the
  // server's own: nothing is copied. kNotFound if the part is not there (any more); kIo if the
  // server is gone or says nothing for PeerOptions::stall.
  [[nodiscard]] Result<std::vector<MappedFile>> read(const Endpoint& from, const PublicationId& id,
                                                     const PartReceipt& part,
                                                     std::span<const ByteRange> ranges,
                                                     const Deadline& deadline);
  // The hash of each chunk, from a trainer rank. Not proven by the manifest: they show who sent
  // which bytes, and the caller proves the whole.
  [[nodiscard]] Result<std::vector<Hash128>> chunk_hashes(const Endpoint& from,
                                                          const PublicationId& id,
                                                          const PartReceipt& part,
                                                          const Deadline& deadline);
  // By which bytes come from there; never kAuto. kUnsupported if the carrier that is set does not
  // lead there.
  [[nodiscard]] Result<PeerCarrier> carrier_to(const Endpoint& to);
  // By which the last bytes came; kAuto before any did.
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
  [[nodiscard]] Result<std::vector<MappedFile>> read_by_nixl(Connection& connection,
                                                             const Want& want,
                                                             std::span<const ByteRange> ranges,
                                                             const Deadline& deadline);
  [[nodiscard]] Result<std::string> next_message(Connection& connection, std::uint64_t most,
                                                 const Deadline& deadline);
  [[nodiscard]] Result<Answer> ask(Connection& connection, const Want& want,
                                   const Deadline& deadline);

  const PeerOptions options_;
  const std::string token_;
  const std::string host_;
  std::map<unsigned, Connection> connections_;  // by rank
  const std::shared_ptr<ReadMemory> memory_;    // for TCP
  std::unique_ptr<NixlReader> nixl_;            // made when it is first needed
  bool nixl_looked_for_ = false;
  PeerCarrier carrier_ = PeerCarrier::kAuto;
};

}  // namespace driftless::peer
