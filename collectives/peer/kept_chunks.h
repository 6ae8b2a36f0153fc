// SPDX-License-Identifier: Apache-2.0
// KeptChunks: chunks of parts that a receiver read and proved, in a PartStore from which it serves
// them to other receivers, within a bound. One thread at a time, beside those that serve.
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

  // The hashes of the part's chunks, if they are known.
  [[nodiscard]] const std::vector<Hash128>* hashes(const PublicationId& id,
                                                   const PartReceipt& part) const;
  // What is kept under that name goes, if it is of a part with another content: of an earlier run.
  void set_hashes(const PublicationId& id, const PartReceipt& part, std::vector<Hash128> hashes);
  // Empty: it is not kept. [set_hashes() before]
  [[nodiscard]] std::span<const std::byte> find(const PublicationId& id, const PartReceipt& part,
                                                std::uint64_t chunk) const;
  // A proven chunk. Older publications make room for it. False: there is none
  // for it. [set_hashes() before]
  [[nodiscard]] bool keep(const PublicationId& id, const PartReceipt& part, std::uint64_t chunk,
                          std::span<const std::byte> bytes);
  void keep_only(const std::vector<PublicationId>& ids);

 private:
  struct Part {
    Hash128 hash;  // of the part
    std::vector<Hash128> hashes;
    std::shared_ptr<const StoredPart> stored = nullptr;  // null: nothing is kept of it
    std::byte* memory = nullptr;                         // of `stored`
    std::uint64_t bytes = 0;                             // that are kept
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
