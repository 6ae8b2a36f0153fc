// SPDX-License-Identifier: Apache-2.0
// The publications that a road holds in memory: which ones (RetentionRing), and their manifests and
// parts (HeldPublications). Not safe by themselves: their owner has a lock.
#pragma once

#include <map>

#include "collectives/road.h"

namespace driftless {

// Which publications are held: the newest anchor, and the newest versions as far as the ring goes.
// The newest version stays, however large it is.
class RetentionRing {
 public:
  // `road` is named in messages. `ring_bytes`: of all versions held, of each rank.
  RetentionRing(std::string road, std::uint64_t ring_bytes, unsigned ring_versions)
      : road_(std::move(road)), ring_bytes_(ring_bytes), ring_versions_(ring_versions) {}

  // The hash of its manifest, if it is held.
  [[nodiscard]] std::optional<Hash128> manifest(const PublicationId& id) const;
  // kAlreadyExists if it, or a newer one of its kind, was added before.
  [[nodiscard]] Status check_new(const PublicationId& id) const;
  // Makes room as needed. `bytes`: of each rank's parts.
  void add(const PublicationId& id, const Hash128& manifest,
           std::map<unsigned, std::uint64_t> bytes);
  [[nodiscard]] std::vector<PublicationId> ids() const;

 private:
  struct Held {
    Hash128 manifest;
    std::map<unsigned, std::uint64_t> bytes;  // by rank
  };
  [[nodiscard]] bool exceeded() const;

  std::string road_;
  std::uint64_t ring_bytes_;
  unsigned ring_versions_;
  std::map<PublicationId, Held> held_;
  std::map<PublicationKind, std::uint64_t> newest_;
};

// A finished part. Its bytes do not change any more, and `owner` keeps them.
struct HeldPart {
  PartReceipt receipt;
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

// The publications that receivers can see, and the parts of the one that is not committed yet.
class HeldPublications {
 public:
  explicit HeldPublications(std::string road) : road_(std::move(road)) {}

  // All parts of rank `rank` for attempt `attempt`. Those of other attempts are forgotten.
  void stage(std::uint64_t attempt, unsigned rank, std::vector<HeldPart> parts);
  void drop(std::uint64_t attempt);
  // False if `attempt` is not what was staged. What is not in `kept` goes.
  [[nodiscard]] bool commit(std::uint64_t attempt, const PublicationId& id, std::string manifest,
                            const std::vector<PublicationId>& kept);
  void forget_staged();
  void clear();

  [[nodiscard]] std::vector<PublicationId> list() const;
  [[nodiscard]] bool has_version_past(std::uint64_t version) const;
  [[nodiscard]] Result<std::string> manifest(const PublicationId& id) const;
  // The part that `wanted` names, of its size.
  [[nodiscard]] Result<HeldPart> part(const PublicationId& id, const PartReceipt& wanted) const;

 private:
  using Parts = std::map<std::pair<unsigned, std::string>, HeldPart>;  // by rank and name
  struct Publication {
    std::string manifest;
    Parts parts;
  };
  [[nodiscard]] Result<const Publication*> find(const PublicationId& id) const;

  std::string road_;
  std::map<PublicationId, Publication> publications_;
  std::uint64_t attempt_ = 0;
  Parts staged_;
};

}  // namespace driftless
