// SPDX-License-Identifier: Apache-2.0
// The publications that a road holds in memory: RetentionRing decides which ones, HeldPublications
// holds their manifests and parts. Neither is thread-safe: the owner locks.
#pragma once

#include <map>

#include "collectives/road.h"

namespace driftless {

// Decides which publications stay: the newest anchor, and as many of the newest versions as fit
// into the ring. The newest version stays, however large it is.
class RetentionRing {
 public:
  // Error messages name `road`. `ring_bytes` limits the bytes of all versions held, for each rank.
  RetentionRing(std::string road, std::uint64_t ring_bytes, unsigned ring_versions)
      : road_(std::move(road)), ring_bytes_(ring_bytes), ring_versions_(ring_versions) {}

  // The hash of the publication's manifest, if the publication is held.
  [[nodiscard]] std::optional<Hash128> manifest(const PublicationId& id) const;
  // kAlreadyExists if this publication, or a newer one of its kind, was added before.
  [[nodiscard]] Status check_new(const PublicationId& id) const;
  // Adds a publication, and removes the oldest ones as needed. `bytes`: the size of each rank's
  // parts.
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

// A finished part. Its bytes no longer change, and `owner` keeps them alive.
struct HeldPart {
  PartReceipt receipt;
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

// The publications that receivers can see, and the parts of the one that is not yet committed.
class HeldPublications {
 public:
  explicit HeldPublications(std::string road) : road_(std::move(road)) {}

  // Stores all parts that rank `rank` wrote in attempt `attempt`. Drops the staged parts of other
  // attempts.
  void stage(std::uint64_t attempt, unsigned rank, std::vector<HeldPart> parts);
  void drop(std::uint64_t attempt);
  // Makes the staged parts visible as publication `id`, and removes every publication that is not
  // in `kept`. False if `attempt` is not the staged one.
  [[nodiscard]] bool commit(std::uint64_t attempt, const PublicationId& id, std::string manifest,
                            const std::vector<PublicationId>& kept);
  void forget_staged();
  void clear();

  [[nodiscard]] std::vector<PublicationId> list() const;
  [[nodiscard]] bool has_version_past(std::uint64_t version) const;
  [[nodiscard]] Result<std::string> manifest(const PublicationId& id) const;
  // The part with the name, rank and size of `wanted`.
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
