// SPDX-License-Identifier: Apache-2.0
// Landing: what a receiver holds of the nccl road: the publications that were committed, and the
// parts of the one that is on its way.
//
// Not safe by itself: its owner has a lock.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collectives/nccl/fabric.h"
#include "collectives/road.h"

namespace driftless::nccl {

struct LandedPart {
  PartReceipt receipt;
  Block block;
};

class Landing {
 public:
  // Parts of rank `rank` for attempt `attempt`. Those of other attempts are forgotten.
  void stage(std::uint64_t attempt, unsigned rank, std::vector<LandedPart> parts);
  void drop(std::uint64_t attempt);
  // False where `attempt` is not what was staged.
  [[nodiscard]] bool commit(std::uint64_t attempt, const PublicationId& id, std::string manifest,
                            const std::vector<PublicationId>& kept);
  void forget_staged();
  void clear();

  [[nodiscard]] std::vector<PublicationId> list() const;
  [[nodiscard]] bool has_step_past(std::uint64_t version) const;
  [[nodiscard]] Result<std::string> manifest(const PublicationId& id) const;
  // The part that `wanted` names, of its size.
  [[nodiscard]] Result<LandedPart> part(const PublicationId& id, const PartReceipt& wanted) const;

 private:
  using Parts = std::map<std::pair<unsigned, std::string>, LandedPart>;  // by rank and name
  struct Publication {
    std::string manifest;
    Parts parts;
  };
  [[nodiscard]] Result<const Publication*> find(const PublicationId& id) const;

  std::map<PublicationId, Publication> publications_;
  std::uint64_t attempt_ = 0;
  Parts staged_;
};

}  // namespace driftless::nccl
