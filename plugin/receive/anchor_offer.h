// SPDX-License-Identifier: Apache-2.0
// AnchorOffer: a receiver that followed by deltas holds the values of an anchor of its version. It
// puts the anchor's parts together, with the heads of their frames as the trainer sealed them, and
// gives them to a road whose receivers serve each other: one that joins reads the whole from
// others' weights, not from the trainer. The road keeps only what it can prove to be the
// trainer's bytes, so that weights which are not do no harm. One thread at a time.
#pragma once

#include "collectives/road.h"
#include "plugin/targets/weight_target.h"

namespace driftless {

class AnchorOffer {
 public:
  // One part more of the anchor of `held`, the version that the target holds; false: there is none,
  // or nothing is left to offer of it. After a failure nothing more of that anchor is offered.
  [[nodiscard]] Result<bool> offer_next(ReceiveRoad& road, const WeightTarget& target,
                                        const VersionId& held, const Deadline& deadline);
  [[nodiscard]] std::uint64_t kept_bytes() const { return kept_bytes_; }  // by the road, in all

 private:
  [[nodiscard]] Status begin(ReceiveRoad& road, const WeightLayout& layout, const VersionId& held,
                             const Deadline& deadline);
  [[nodiscard]] Status offer_part(ReceiveRoad& road, const WeightTarget& target,
                                  const PartReceipt& part, const Deadline& deadline);

  PublicationId anchor_;           // the last that was looked at
  std::vector<PartReceipt> left_;  // of it
  std::uint64_t kept_bytes_ = 0;
};

}  // namespace driftless
