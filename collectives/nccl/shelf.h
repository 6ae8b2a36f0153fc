// SPDX-License-Identifier: Apache-2.0
// Shelf: which publications receivers hold. The leader decides, and tells them with every commit,
// so that all agree: the newest anchor, and the newest steps as far as the ring goes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "collectives/road.h"

namespace driftless::nccl {

class Shelf {
 public:
  Shelf(std::uint64_t ring_bytes, unsigned ring_versions)
      : ring_bytes_(ring_bytes), ring_versions_(ring_versions) {}

  // The hash of its manifest, if it is held.
  [[nodiscard]] std::optional<Hash128> manifest(const PublicationId& id) const;
  // kAlreadyExists where it, or a newer one of its kind, was added before.
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

  std::uint64_t ring_bytes_;
  unsigned ring_versions_;
  std::map<PublicationId, Held> held_;
  std::optional<std::uint64_t> newest_step_, newest_anchor_;
};

}  // namespace driftless::nccl
