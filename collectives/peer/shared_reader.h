// SPDX-License-Identifier: Apache-2.0
// SharedReader: reads ranges of a part over TCP together with other receivers that want the same
// bytes. Whole chunks of the part come from the trainer rank or from another receiver, as the
// leader assigns them (tracker.h); the bytes before and after them come from the trainer rank.
//
// Every chunk is compared with its hash, which the trainer rank sent. A chunk that does not match,
// or does not arrive in time, is read from the trainer rank instead, and the leader gets a report
// about its sender. So no other receiver can make a read fail. Proven chunks are kept
// (kept_chunks.h) and served; the server starts with the first one. One thread at a time.
#pragma once

#include "collectives/peer/client.h"
#include "collectives/peer/kept_chunks.h"
#include "collectives/peer/part_reader.h"
#include "collectives/peer/part_server.h"

namespace driftless::peer {

class SharedReader {
 public:
  // `from_trainer` reads from trainer ranks. `reached_by`: the host part of an address of this
  // process; empty: it keeps and serves nothing.
  SharedReader(const PeerOptions& options, std::string reached_by, std::string token,
               Client& leader, PartReader& from_trainer);

  // Whether to read a part together: it has chunks, they come over TCP, and several receivers may
  // want it.
  [[nodiscard]] bool reads(const Endpoint& rank, const PartReceipt& part, std::uint32_t readers);
  // Like PartReader::read().
  [[nodiscard]] Result<std::vector<MappedFile>> read(const Endpoint& rank, const PublicationId& id,
                                                     const PartReceipt& part,
                                                     std::span<const ByteRange> ranges,
                                                     const Deadline& deadline);
  // Takes the bytes of a whole part from elsewhere. Keeps and serves those chunks that match their
  // hash, and returns the number of their bytes.
  [[nodiscard]] Result<std::uint64_t> offer(const Endpoint& rank, const PublicationId& id,
                                            const PartReceipt& part,
                                            std::span<const std::byte> bytes,
                                            const Deadline& deadline);
  // The publications that exist; chunks of all others are dropped.
  void keep_only(const std::vector<PublicationId>& ids) { kept_.keep_only(ids); }
  [[nodiscard]] std::uint64_t kept_bytes() const { return kept_.bytes(); }
  // Bytes of all reads that came from trainer ranks; and those from receivers.
  [[nodiscard]] std::uint64_t trainer_bytes() const { return trainer_bytes_; }
  [[nodiscard]] std::uint64_t receiver_bytes() const { return receiver_bytes_; }

 private:
  class Read;

  [[nodiscard]] Status start_server();

  const PeerOptions options_;
  const std::string reached_by_;
  const std::string token_;
  Client& leader_;
  PartReader& from_trainer_;
  KeptChunks kept_;
  std::unique_ptr<PartServer> server_;         // null until something is kept
  std::map<std::uint64_t, PartReader> peers_;  // by the source's number
  std::uint64_t batch_bytes_;
  std::uint64_t trainer_bytes_ = 0, receiver_bytes_ = 0;
};

}  // namespace driftless::peer
