// SPDX-License-Identifier: Apache-2.0
// KeptChunks: chunks of parts that a receiver has read and proven. It keeps them, within a limit,
// in a PartStore, from which it serves other receivers. One thread at a time, besides the threads
// that serve.
#pragma once

#include <map>

#include "collectives/peer/part_memory.h"

namespace driftless::peer {

class KeptChunks {
 public:
  explicit KeptChunks(std::uint64_t most_bytes)
      : most_bytes_(most_bytes), store_(std::make_shared<PartStore>(0)) {}

  [[nodiscard]] const std::shared_ptr<PartStore>& store() const { return store_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

  // The hashes of the part's chunks; null if unknown.
  [[nodiscard]] const std::vector<Hash128>* hashes(const PublicationId& id,
                                                   const PartReceipt& part) const;
  // Sets the hashes. If a part of that name is already kept (of an earlier run), drops its
  // publication first.
  void set_hashes(const PublicationId& id, const PartReceipt& part, std::vector<Hash128> hashes);
  // The chunk's bytes; empty if it is not kept. [after set_hashes()]
  [[nodiscard]] std::span<const std::byte> find(const PublicationId& id, const PartReceipt& part,
                                                std::uint64_t chunk) const;
  // Keeps a proven chunk, and drops older publications if needed. False: there is no room. [after
  // set_hashes()]
  [[nodiscard]] bool keep(const PublicationId& id, const PartReceipt& part, std::uint64_t chunk,
                          std::span<const std::byte> bytes);
  void keep_only(const std::vector<PublicationId>& ids);

 private:
  struct Part {
    Hash128 hash;  // of the part
    std::vector<Hash128> hashes;
    std::shared_ptr<const StoredPart> stored = nullptr;  // null: no chunk is kept
    std::byte* memory = nullptr;                         // of `stored`
    std::uint64_t bytes = 0;                             // kept bytes
  };
  using Parts = std::map<std::string, Part>;

  [[nodiscard]] const Part* part_of(const PublicationId& id, const PartReceipt& part) const;
  [[nodiscard]] bool make_room(const PublicationId& id, std::uint64_t bytes);
  void drop(std::map<PublicationId, Parts>::iterator publication);

  const std::uint64_t most_bytes_;
  const std::shared_ptr<PartStore> store_;
  std::map<PublicationId, Parts> publications_;
  std::uint64_t bytes_ = 0;
};

}  // namespace driftless::peer
